package pglocal

import "fmt"

// Stage is what a download is busy with.
type Stage int

// The stages of a download, in their order.
const (
	Waiting     Stage = iota + 1 // for another process that downloads the same
	Downloading                  // from the repository
	Unpacking                    // into the cache
)

// Progress is how far a download has come.
type Progress struct {
	Stage      Stage
	Version    string // of PostgreSQL
	Repository string // without a password
	Folder     string // what it is kept in
	Received   int64  // bytes
	Total      int64  // bytes, 0 if the repository does not say
}

// String describes the progress in a line without an end.
func (p Progress) String() string {
	switch p.Stage {
	case Waiting:
		return fmt.Sprintf("waiting for another process that downloads PostgreSQL %s to %s", p.Version, p.Folder)
	case Unpacking:
		return fmt.Sprintf("unpacking PostgreSQL %s to %s", p.Version, p.Folder)
	default:
		return fmt.Sprintf("downloading PostgreSQL %s from %s%s", p.Version, p.Repository, p.amount())
	}
}

func (p Progress) amount() string {
	const megabyte = 1e6
	switch {
	case p.Total > 0:
		return fmt.Sprintf(": %.1f of %.1f MB", float64(p.Received)/megabyte, float64(p.Total)/megabyte)
	case p.Received > 0:
		return fmt.Sprintf(": %.1f MB", float64(p.Received)/megabyte)
	default:
		return ""
	}
}
