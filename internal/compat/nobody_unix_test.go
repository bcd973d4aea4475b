//go:build unix

package compat_test

import (
	"os/exec"
	"syscall"
)

func runAsNobody(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}
