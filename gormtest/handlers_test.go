package gormtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/gorm-idempotency/idempotency"
)

// payment, stock and audit are what the handlers of these tests write.
type payment struct {
	ID    uint `gorm:"primaryKey"`
	Event string
}

type stock struct {
	ID   uint `gorm:"primaryKey"`
	Left int
}

type audit struct {
	ID   uint `gorm:"primaryKey"`
	Text string
}

// openShop is a handle on a database of the test's own, with tables of an application's.
func openShop(t testing.TB) *gorm.DB {
	t.Helper()
	db, err := gorm.Open(postgres.Open(DSN(t)), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, db)
	if err := db.Use(idempotency.New(idempotency.Config{})); err != nil {
		t.Fatal(err)
	}
	if err := db.AutoMigrate(&payment{}, &stock{}, &audit{}); err != nil {
		t.Fatal(err)
	}
	if err := db.Create(&stock{ID: 1, Left: 1000}).Error; err != nil {
		t.Fatal(err)
	}
	return db
}

func eventID(event int) string { return fmt.Sprintf("evt_%d", event) }

// pay is a handler as it should be.
func pay(event int) func(*gorm.DB) error {
	return func(tx *gorm.DB) error {
		if err := tx.Create(&payment{Event: eventID(event)}).Error; err != nil {
			return err
		}
		if err := sell(tx); err != nil {
			return err
		}
		return idempotency.Respond(tx, 201, map[string]string{"payment": eventID(event)})
	}
}

func sell(tx *gorm.DB) error {
	return tx.Model(&stock{}).Where("id = 1").Update("left", gorm.Expr(`"left" - 1`)).Error
}

// correct are ways to write a handler that keeps the promise.
var correct = map[string]func(t testing.TB) Deliver{
	"Do": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Do(db, "shop", eventID(event), nil, pay(event))
		}
	},
	"a wrapped handle": func(testing.TB) Deliver {
		return func(ctx context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Wrap(db).WithContext(ctx).Idempotent("shop", eventID(event), nil, pay(event))
		}
	},
	"DoValue": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			value, _, err := idempotency.DoValue(db, "shop", eventID(event), nil, func(tx *gorm.DB) (payment, error) {
				p := payment{Event: eventID(event)}
				return p, tx.Create(&p).Error
			})
			return value, err
		}
	},
	"an answer of chance and clock, stored": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
				if err := tx.Create(&payment{Event: eventID(event)}).Error; err != nil {
					return err
				}
				return idempotency.Respond(tx, 200, rand.Text()+time.Now().String())
			})
		}
	},
	"an answer of its own": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			_, err := idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error { return sell(tx) })
			return "thanks", err
		}
	},
	"a repository that is given a context": func(testing.TB) Deliver {
		return func(ctx context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
				return idempotency.FromContext(tx.Statement.Context, db).Create(&payment{Event: eventID(event)}).Error
			})
		}
	},
	"nested transactions": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
				return tx.Transaction(func(tx *gorm.DB) error { return pay(event)(tx) })
			})
		}
	},
	"a batch that joins a transaction": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			return nil, db.Transaction(func(tx *gorm.DB) error {
				for item := range 3 {
					_, err := idempotency.Do(tx, "shop", fmt.Sprintf("%d/%d", event, item), nil, pay(event))
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
	},
	"what is harmless to repeat, before the call": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			if err := db.Exec("INSERT INTO audits (id, text) VALUES (1, 'seen') ON CONFLICT DO NOTHING").Error; err != nil {
				return nil, err
			}
			if err := db.Exec(`UPDATE stocks SET "left" = "left"`).Error; err != nil {
				return nil, err
			}
			return idempotency.Do(db, "shop", eventID(event), nil, pay2(event))
		}
	},
	"work after the commit": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
				err := idempotency.AfterCommit(tx, func(ctx context.Context) {
					var n int64
					db.WithContext(ctx).Model(&payment{}).Count(&n)
				})
				if err != nil {
					return err
				}
				return pay(event)(tx)
			})
		}
	},
	"a row that the first event writes for all": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
				if err := tx.Clauses(clause.OnConflict{DoNothing: true}).Create(&audit{ID: 1, Text: "the customer"}).Error; err != nil {
					return err
				}
				return pay(event)(tx)
			})
		}
	},
	"a row that is there already, which is no harm": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
				_ = tx.Transaction(func(tx *gorm.DB) error { return tx.Create(&audit{ID: 1, Text: "the customer"}).Error })
				return pay(event)(tx)
			})
		}
	},
	"a row that replaces the event's before": func(testing.TB) Deliver {
		return func(_ context.Context, db *gorm.DB, event int) (any, error) {
			return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
				if err := sell(tx); err != nil { // one after the other
					return err
				}
				if err := tx.Exec("DELETE FROM audits").Error; err != nil {
					return err
				}
				return tx.Create(&audit{Text: eventID(event)}).Error
			})
		}
	},
	"an http.Handler that tells replays": func(testing.TB) Deliver {
		return Serve(func(db *gorm.DB) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				id := r.Header.Get("Event-Id")
				result, err := idempotency.Do(db.WithContext(r.Context()), "shop", id, nil, func(tx *gorm.DB) error {
					return tx.Create(&payment{Event: id}).Error
				})
				if err != nil {
					http.Error(w, "try again", http.StatusServiceUnavailable)
					return
				}
				w.Header().Set("Idempotency-Replayed", fmt.Sprint(result.Replayed))
				w.WriteHeader(result.Status)
			})
		}, func(event int) *http.Request {
			r, _ := http.NewRequest(http.MethodPost, "/hooks", http.NoBody)
			r.Header.Set("Event-Id", eventID(event))
			return r
		})
	},
}

// wrong are ways to break the promise, each with what finds it and the words that it is told with.
var wrong = map[string]struct {
	deliver               func(t testing.TB) Deliver
	hammer, crash, record []string // nil: this one cannot see it
}{
	"a write on the outer handle with the outer context": {
		deliver: func(testing.TB) Deliver {
			return func(ctx context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
					if err := db.WithContext(ctx).Create(&audit{Text: "paid"}).Error; err != nil {
						return err
					}
					return pay(event)(tx)
				})
			}
		},
		crash:  []string{`INSERT INTO "audits"`, "outside of the transaction", "handlers_test.go"},
		record: []string{`INSERT INTO "audits"`, "shop evt_0", "handlers_test.go"},
	},
	"a write on a bare *sql.DB": {
		deliver: func(testing.TB) Deliver {
			return func(ctx context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
					pool, err := db.DB()
					if err != nil {
						return err
					}
					if _, err := pool.ExecContext(ctx, "INSERT INTO audits (text) VALUES ('paid')"); err != nil {
						return err
					}
					return pay(event)(tx)
				})
			}
		},
		crash:  []string{"INSERT INTO audits", "outside of the transaction"},
		record: []string{"INSERT INTO audits", "shop evt_0"},
	},
	"a counter before the call": {
		deliver: func(testing.TB) Deliver {
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				if err := sell(db); err != nil {
					return nil, err
				}
				return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
					return tx.Create(&payment{Event: eventID(event)}).Error
				})
			}
		},
		hammer: []string{`UPDATE "stocks"`, "changed the database again", "1 row of stocks", "handlers_test.go"},
		crash:  []string{`UPDATE "stocks"`, "changed the database again"},
	},
	"a write after the call, at a replay too": {
		deliver: func(testing.TB) Deliver {
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				result, err := idempotency.Do(db, "shop", eventID(event), nil, pay(event))
				if err != nil {
					return nil, err
				}
				return result, db.Create(&audit{Text: "answered"}).Error
			}
		},
		hammer: []string{`INSERT INTO "audits"`, "changed the database again"},
		crash:  []string{`INSERT INTO "audits"`, "changed the database again"},
	},
	"an answer of the clock": {
		deliver: func(testing.TB) Deliver {
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				_, err := idempotency.Do(db, "shop", eventID(event), nil, pay(event))
				return map[string]any{"at": time.Now().UnixNano()}, err
			}
		},
		hammer: []string{"event 0 was answered differently", `\"at\":`},
		crash:  []string{"event 0 was answered differently"},
	},
	"a value that is changed after the call": {
		deliver: func(testing.TB) Deliver {
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				value, result, err := idempotency.DoValue(db, "shop", eventID(event), nil, func(tx *gorm.DB) (payment, error) {
					p := payment{Event: eventID(event)}
					return p, tx.Create(&p).Error
				})
				if err == nil && !result.Replayed {
					value.Event = "new: " + value.Event
				}
				return value, err
			}
		},
		hammer: []string{"event 0 was answered differently", "new: evt_0"},
		crash:  []string{"event 0 was answered differently"},
	},
	"an id of each attempt's own": {
		deliver: func(testing.TB) Deliver {
			var attempt atomic.Int64
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				id := fmt.Sprintf("%s/%d", eventID(event), attempt.Add(1))
				_, err := idempotency.Do(db, "shop", id, nil, pay(event))
				return "thanks", err
			}
		},
		hammer: []string{"claimed another key", "shop evt_0/2"},
		crash:  []string{"claimed another key"},
	},
	"an error that is swallowed": {
		deliver: func(testing.TB) Deliver {
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				_, _ = idempotency.Do(db, "shop", eventID(event), nil, pay(event))
				return "thanks", nil
			}
		},
		crash: []string{"was answered as a success, and nothing of it is committed", "before request 1, BEGIN"},
	},
	"a duplicate that is recognised in memory": {
		deliver: func(testing.TB) Deliver {
			var ran sync.Map
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
					if _, again := ran.LoadOrStore(event, true); again {
						return nil
					}
					return pay(event)(tx)
				})
			}
		},
		crash: []string{"must not remember outside of the database"},
	},
	"a write that only some deliveries make, by a look at the table": {
		deliver: func(testing.TB) Deliver {
			return func(ctx context.Context, db *gorm.DB, event int) (any, error) {
				var seen int64
				if err := db.Model(&audit{}).Where("text = ?", eventID(event)).Count(&seen).Error; err != nil {
					return nil, err
				}
				if seen == 0 {
					if err := db.Create(&audit{Text: eventID(event)}).Error; err != nil {
						return nil, err
					}
				}
				return idempotency.Do(db, "shop", eventID(event), nil, pay(event))
			}
		},
		hammer: []string{"audits changed outside of the transactions that hold the keys", `INSERT INTO "audits"`},
	},
	"a goroutine that outlives the handler": {
		deliver: func(t testing.TB) Deliver {
			over := make(chan struct{})
			t.Cleanup(func() { close(over) })
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
					go func() { <-over }()
					return pay(event)(tx)
				})
			}
		},
		hammer: []string{"a goroutine of the delivery is still running", "handlers_test.go"},
		crash:  []string{"a goroutine of the delivery is still running"},
	},
	"a write by a goroutine that is not waited for": {
		deliver: func(t testing.TB) Deliver {
			return func(ctx context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
					go db.WithContext(context.WithoutCancel(ctx)).Create(&audit{Text: eventID(event)})
					return pay(event)(tx)
				})
			}
		},
		crash: []string{`INSERT INTO "audits"`, "outside of the transaction"},
	},
	"the claim in one transaction, and the effect in the next": {
		deliver: func(testing.TB) Deliver {
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				result, err := idempotency.Do(db, "shop", eventID(event), nil, func(*gorm.DB) error { return nil })
				if err != nil || result.Replayed {
					return result, err
				}
				return result, db.Transaction(pay2(event))
			}
		},
		crash: []string{
			"changed 0 rows of payments outside of the transaction that holds its key, and one without a crash 1", "write it inside the handler",
			`INSERT INTO "payments"`, "handlers_test.go",
		},
	},
	"a row that is written after the commit": {
		deliver: afterCommit,
		crash:   []string{"changed 0 rows of audits outside", "What AfterCommit runs is lost likewise", "WithExempt", `INSERT INTO "audits"`},
	},
	"one id for all events": {
		deliver: func(testing.TB) Deliver {
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				return idempotency.Do(db, "shop", "evt_", nil, pay2(event))
			}
		},
		hammer: []string{`8 events claimed 1 key, such as "shop evt_"`, "a key of its own"},
		crash:  []string{`event 1 claimed no key, after event 0 had claimed "shop evt_"`, "a key of its own"},
	},
	"a duplicate that is recognised in memory, before the call": {
		deliver: func(testing.TB) Deliver {
			var ran sync.Map
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				if _, again := ran.LoadOrStore(event, true); again {
					return "thanks", nil
				}
				_, err := idempotency.Do(db, "shop", eventID(event), nil, pay(event))
				return "thanks", err
			}
		},
		crash: []string{"claimed 0 keys, and one without a crash 1: a handler must not remember"},
	},
	"no call at all": {
		deliver: func(testing.TB) Deliver {
			return func(_ context.Context, db *gorm.DB, event int) (any, error) {
				return "thanks", db.Transaction(pay2(event))
			}
		},
		hammer: []string{"claimed no key", `INSERT INTO "payments"`},
		crash:  []string{"claimed no key"},
	},
}

// afterCommit writes a row that may be lost.
func afterCommit(testing.TB) Deliver {
	return func(_ context.Context, db *gorm.DB, event int) (any, error) {
		return idempotency.Do(db, "shop", eventID(event), nil, func(tx *gorm.DB) error {
			err := idempotency.AfterCommit(tx, func(ctx context.Context) {
				db.WithContext(ctx).Create(&audit{Text: eventID(event)})
			})
			if err != nil {
				return err
			}
			return pay(event)(tx)
		})
	}
}

// pay2 is the effect of pay, without the answer, which only a handler has.
func pay2(event int) func(*gorm.DB) error {
	return func(tx *gorm.DB) error { return tx.Create(&payment{Event: eventID(event)}).Error }
}

var errTry = errors.New("try again")

// openConfig is a handle on the connections that a configuration makes.
func openConfig(t testing.TB, config *pgx.ConnConfig) *gorm.DB {
	t.Helper()
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: stdlib.OpenDB(*config)}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, db)
	if err := db.Use(idempotency.New(idempotency.Config{})); err != nil {
		t.Fatal(err)
	}
	return db
}
