//go:build unix && !linux

package pglocal

// memoryFolder knows of none.
func memoryFolder() string { return "" }
