//go:build unix

package pglocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// choosePrograms goes down the ladder: the programs that the caller names, those on the machine, those in the cache,
// those that it downloads.
func choosePrograms(ctx context.Context, options Options, owner account) (programs, error) {
	if options.Programs != "" {
		major, err := owner.askVersion(ctx, options.Programs)
		if err != nil {
			return programs{}, fmt.Errorf("the programs cannot be used: %w", err)
		}
		return programs{folder: options.Programs, major: major}, nil
	}
	patterns := options.usual
	if patterns == nil {
		patterns = usualFolders
	}
	installed, unfit := findPrograms(ctx, patterns, owner.askVersion)
	if unfit == nil {
		return installed, nil
	}
	downloaded, err := downloadedPrograms(ctx, options)
	switch {
	case err == nil:
		return downloaded, nil
	case errors.Is(unfit, errNoneInstalled):
		return programs{}, &noProgramsError{tried: err}
	default:
		return programs{}, &noProgramsError{tried: fmt.Errorf("%w, and %w", unfit, err)}
	}
}

// askVersion runs a folder's programs as the account that is to run the server: for root that may be one that cannot reach
// them. Shims of version managers and programs of another machine fail here too.
func (a account) askVersion(ctx context.Context, folder string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if !hasPrograms(folder) {
		return 0, fmt.Errorf("%s does not have both postgres and initdb", folder)
	}
	command := exec.CommandContext(ctx, filepath.Join(folder, "postgres"), "--version")
	var answer, complaint bytes.Buffer
	command.Stdout, command.Stderr = &answer, &complaint
	command.Dir = "/" // where every account can be
	command.Env = environment()
	command.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential}
	command.WaitDelay = time.Second // for a child of a script that keeps our pipe
	if err := command.Run(); err != nil {
		return 0, fmt.Errorf("those in %s do not run (%w)", folder, withLastLine(err, complaint.String()))
	}
	return checkVersion(folder, answer.String())
}

// withLastLine adds what a program said last to the error that it ended with.
func withLastLine(err error, output string) error {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return fmt.Errorf("%w: %s", err, last)
	}
	return err
}

// isFull tells whether an error, or a program's log, is of a full disk. Texts are all that is left of some errors.
func isFull(text string) bool {
	return strings.Contains(text, syscall.ENOSPC.Error()) || strings.Contains(text, syscall.EDQUOT.Error()) ||
		strings.Contains(text, "No space left on device") // as C says it
}

// explainFile says what to do about an error of the cache's files.
func explainFile(folder string, err error) error {
	var remote *repositoryError
	switch {
	case errors.As(err, &remote): // not of a file, whatever it says
		return err
	case isFull(err.Error()):
		return fmt.Errorf("the disk of %s is full: free 200 MB there or set %s to a folder on another one", folder, cacheVariable)
	case errors.Is(err, os.ErrPermission), strings.Contains(err.Error(), syscall.EACCES.Error()),
		errors.Is(err, syscall.EROFS), strings.Contains(err.Error(), syscall.EROFS.Error()):
		return fmt.Errorf("folder %s cannot be written (%w): set %s to one that can", folder, err, cacheVariable)
	default:
		return err
	}
}
