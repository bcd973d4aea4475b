package pglocal

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// memoryRoom is what must be free. A server begins with 50 MB; a container's /dev/shm has 64.
const memoryRoom = 2 << 30

// memoryFolder returns a folder whose files are in memory, or "" if there is no room for a server's. Measured, copying a
// database takes 15 ms there and 70 on a disk, though nothing is synced: it is the hundreds of small files.
//
// Who sets TMPDIR has said where temporary files go.
func memoryFolder() string {
	const folder, tmpfs = "/dev/shm", 0x01021994
	var system syscall.Statfs_t
	switch {
	case os.Getenv("TMPDIR") != "":
	case syscall.Statfs(folder, &system) != nil || int64(system.Type) != tmpfs: //nolint:unconvert // int32 on some machines
	case system.Bavail < memoryRoom/uint64(system.Bsize):
	case availableMemory() < memoryRoom:
	default:
		return folder
	}
	return ""
}

// availableMemory is what the machine, and the container where there is one, can still give. A file system in memory
// reports its own limit alone.
func availableMemory() int64 {
	content, _ := os.ReadFile("/proc/meminfo") // without it, none
	available := firstNumber(afterLabel(content, "MemAvailable:")) << 10
	limit, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil || bytes.HasPrefix(limit, []byte("max")) {
		return available
	}
	used, _ := os.ReadFile("/sys/fs/cgroup/memory.current")
	return min(available, firstNumber(limit)-firstNumber(used))
}

func afterLabel(content []byte, label string) []byte {
	_, after, _ := bytes.Cut(content, []byte(label))
	return after
}

func firstNumber(content []byte) int64 {
	fields := bytes.Fields(content)
	if len(fields) == 0 {
		return 0
	}
	number, _ := strconv.ParseInt(string(fields[0]), 10, 64) // 0 for what is none
	return number
}
