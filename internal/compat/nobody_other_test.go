//go:build !unix

package compat_test

import "os/exec"

// runAsNobody is never needed where there is no root.
func runAsNobody(*exec.Cmd) {}
