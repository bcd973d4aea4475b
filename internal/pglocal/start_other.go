//go:build !unix

package pglocal

import "context"

// Start returns [ErrUnsupported]: what takes care that no server is left behind needs process groups.
func Start(context.Context, Options) (*Server, error) { return nil, ErrUnsupported }
