package pglocal

import "syscall"

func mountSmall(folder string) error { return syscall.Mount("none", folder, "tmpfs", 0, "size=256k") }

func unmount(folder string) error { return syscall.Unmount(folder, 0) }
