// Package migrations creates the table of keys in PostgreSQL and checks that it is as the library needs it.
//
// [Up], [Down] and [Status] run the package's goose migrations on a pool of the caller's. They share nothing with an
// application that migrates with goose itself: the versions are kept in a table of their own, no package-level setting
// of goose is read or written, and the advisory lock is another one. [Validate] needs no migration to have run: it reads
// the catalogue, and so judges a table that AutoMigrate or somebody's own tool has made just as well. [WithPartitions]
// makes hash partitions of the table.
//
//	db, err := sql.Open("pgx", dsn)
//	if err != nil {
//		return err
//	}
//	defer db.Close()
//	return migrations.Up(ctx, db)
//
// # Other tools
//
// The SQL files are in [FS] for those who run goose, Atlas or golang-migrate themselves, and in the repository for the
// plain command, which keeps its versions in goose_db_version unless told otherwise:
//
//	goose -dir migrations -table idempotency_goose_version postgres "$DSN" up
//
// They create idempotency_keys in the first schema of the search path, without partitions. [SQL] and [Export] give the
// same migrations with other names and with partitions, as one script or as goose files for a folder of the application's.
//
// # Several processes at once
//
// Every replica of a service may call [Up] when it starts. Each migration is one transaction that first takes a
// transaction-level advisory lock, so replicas take turns, and every migration tolerates that another one was faster.
// There is no session-level lock, hence nothing that a crash or a pooler such as PgBouncer in transaction mode could leave
// locked, and one connection is enough.
package migrations
