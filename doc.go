// Package idempotency makes a webhook handler's, queue consumer's or API's database effect happen exactly once.
//
// Senders deliver at least once. This GORM plugin stores one row for each event, identified by its source and its id, in
// PostgreSQL. The claim of that row, the handler's own writes and the handler's answer are one transaction on one
// connection: either all of it is there or nothing is. Every later delivery of the event gets the first one's answer,
// byte for byte.
//
//	err = db.Use(idempotency.New(idempotency.Config{}))
//	keys := idempotency.Wrap(db)
//
//	result, err := keys.WithContext(ctx).Idempotent("stripe", event.ID, body, func(tx *gorm.DB) error {
//		if err := tx.Create(&Order{ID: event.OrderID}).Error; err != nil {
//			return err
//		}
//		return idempotency.Respond(tx, http.StatusOK, map[string]string{"order_id": event.OrderID})
//	})
//
// # The promise
//
// The database effect of the event (source, id) happens exactly once, however often it is delivered, by however many
// workers, through any crash. Not promised are the order of events, effects outside of the database, and deliveries that
// arrive after the key's retention.
//
// # Words
//
// The claim is the insert that wins the key; its holder is the transaction that has claimed and not yet committed, and
// until it has the event is in flight. A replay answers a duplicate from the stored answer. The digest is what of the
// payload must be equal between deliveries of one event. Retention is how long a key outlives its claim, and the retry
// horizon how long a sender keeps redelivering. A call is standalone if it owns its transaction, and joined if it was made
// on a handle that is in one.
//
// # Setting up
//
// Create the table with the goose migrations in the package migrations, register the plugin with db.Use, and wrap each
// handler's writes in [Do], [DoValue] or [DB.Idempotent]. Run a [Sweeper], which deletes keys once their retention is over.
// [CheckSchema] tells a readiness probe whether the table is right. The package gormtest gives tests a real PostgreSQL.
package idempotency
