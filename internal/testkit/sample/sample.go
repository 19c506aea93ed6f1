// Package sample holds the small project on which Hearth is demonstrated: a
// shell program with a mistake that its own tests find, and a task for a
// scripted model that finds and mends it. It needs only a POSIX shell, because
// a sandbox may have nothing else. Start at [Files] and [Task].
package sample

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed project
var project embed.FS

// Files are the project's files by name. Those that begin with "#!" are
// programs and executable.
func Files() map[string]string {
	files := map[string]string{}
	err := fs.WalkDir(project, "project", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := project.ReadFile(name)
		files[strings.TrimPrefix(name, "project/")] = string(b)
		return err
	})
	if err != nil {
		panic(fmt.Sprintf("sample: read what is embedded: %v", err)) // cannot be
	}
	return files
}

// Task is a prompt for an agent whose model is scripted: run the tests, look at
// the code, mend it, run the tests again. The scripted agent carries it out too.
const Task = `The tests of this project fail. Find out why, mend the code (not the tests), and show that they pass.

@@run ./test.sh@@
@@run cat lib/money.sh@@
@@run sed -i 's/%d\.%d/%d.%02d/' lib/money.sh@@
@@run ./test.sh@@
@@say The amounts lost a zero: 38.05 was printed as 38.5. format_cents now pads the cents to two digits.@@
`

// Make writes the project to a folder that is not there yet, or empty, and makes
// it a git repository with one commit on main, whose id it returns. The id is
// the same each time.
func Make(ctx context.Context, dir string) (head string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the sample: %w", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return "", fmt.Errorf("make the sample in %s: the folder is not empty; name a new one (%w)", dir, cmp.Or(err, fs.ErrExist))
	}
	for name, content := range Files() {
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(content, "#!") {
			mode = 0o755
		}
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return "", fmt.Errorf("make the sample: %w", err)
		}
		if err := os.WriteFile(file, []byte(content), mode); err != nil {
			return "", fmt.Errorf("make the sample: %w", err)
		}
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--template=", "--initial-branch=main"},
		{"-c", "core.autocrlf=false", "add", "--all"},
		{"commit", "--quiet", "--no-verify", "--no-gpg-sign", "--message", "Add tally"},
	} {
		if _, err := git(ctx, dir, args...); err != nil {
			return "", err
		}
	}
	return git(ctx, dir, "rev-parse", "HEAD")
}

// git runs git with nothing of the user's configuration.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "git", args...)
	c.Dir = dir
	c.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull,
		"GIT_AUTHOR_NAME=Sam Ledger", "GIT_AUTHOR_EMAIL=sam@hearth.test", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z",
		"GIT_COMMITTER_NAME=Sam Ledger", "GIT_COMMITTER_EMAIL=sam@hearth.test", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z",
	}
	out, err := c.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}
