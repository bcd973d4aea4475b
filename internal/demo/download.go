package demo

import "github.com/gorm-idempotency/idempotency/internal/pglocal"

// downloads says how the download of PostgreSQL gets on, on a machine without its programs: a line for each stage and each
// quarter, on a terminal as in a log.
func (p *printer) downloads() func(pglocal.Progress) {
	var said struct {
		stage   pglocal.Stage
		quarter int64
	}
	return func(progress pglocal.Progress) {
		now := said
		now.stage, now.quarter = progress.Stage, 0
		if progress.Total > 0 {
			now.quarter = 4 * progress.Received / progress.Total
		}
		if now != said {
			said = now
			p.stepf("", "%s", progress)
		}
	}
}
