package delivery

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/gitcmd"
	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/secret"
)

// object is one that the pack brought.
type object struct {
	id   string
	name string // path where it was first seen; empty for commits and top folders
}

// hit is where a secret was found.
type hit struct {
	object
	kind string
}

// scan looks for secrets in every new object: contents of files and links, names
// in folders, texts of commits. It finishes or the work is refused.
func (s *Store) scan(ctx context.Context, in *incoming, req TakeRequest, found []object) error {
	f := secret.NewFinder(secret.Forms(req.Secrets))
	if f.Empty() || len(found) == 0 {
		return nil
	}
	h, err := s.search(ctx, in, found, f)
	if err != nil {
		var e *gitcmd.Error
		if errors.As(err, &e) && e.Timeout {
			return fault.Wrap(err, fault.PackTooLarge, "The work could not be searched for secrets within %s.", s.cfg.ScanTimeout)
		}
		return fmt.Errorf("search the work for secrets: %w", err)
	}
	if h == nil {
		return nil
	}
	return s.secretFound(ctx, in, req.Head, *h)
}

var errFound = errors.New("found")

func (s *Store) search(ctx context.Context, in *incoming, objects []object, f *secret.Finder) (*hit, error) {
	var ids strings.Builder
	for _, o := range objects {
		ids.WriteString(o.id + "\n")
	}
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { // ends with git; waited for below
		_, _, err := s.cfg.Git.Run(ctx, gitcmd.Run{
			Dir: in.repo, Env: in.env, Args: []string{"cat-file", "--batch", "--buffer"},
			Stdin: strings.NewReader(ids.String()), Stdout: w, Timeout: s.cfg.ScanTimeout,
		})
		w.CloseWithError(err)
		ended <- err
	}()
	h, err := searchBatch(bufio.NewReaderSize(r, 256<<10), objects, f)
	r.CloseWithError(errFound) // git stops when nobody reads on
	gitErr := <-ended
	switch {
	case h != nil:
		return h, nil
	case gitErr != nil && !errors.Is(gitErr, errFound):
		return nil, gitErr
	}
	return nil, err
}

// searchBatch reads what git cat-file --batch prints.
func searchBatch(r *bufio.Reader, objects []object, f *secret.Finder) (*hit, error) {
	chunk := make([]byte, 64<<10)
	content := f.Stream()
	for _, o := range objects {
		head, err := r.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("read object: %w", err)
		}
		words := strings.Fields(head)
		if len(words) != 3 {
			return nil, fmt.Errorf("object %s is %.80q", o.id, head)
		}
		left, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("size of object %s: %w", o.id, err)
		}
		content.Reset()
		for left > 0 {
			n, err := io.ReadFull(r, chunk[:min(left, int64(len(chunk)))])
			if err != nil {
				return nil, fmt.Errorf("read object %s: %w", o.id, err)
			}
			left -= int64(n)
			if content.Write(chunk[:n]); len(content.Found()) > 0 {
				return &hit{object: o, kind: words[1]}, nil
			}
		}
		if _, err := r.Discard(1); err != nil {
			return nil, fmt.Errorf("read object %s: %w", o.id, err)
		}
	}
	return nil, nil
}

// secretFound names the place, never the secret.
func (s *Store) secretFound(ctx context.Context, in *incoming, head string, h hit) error {
	if h.kind == "commit" || h.kind == "tag" {
		return fault.New(fault.SecretFound, "The message of commit %s has a secret in it.", h.id).With("commit", h.id)
	}
	commit := ""
	out, _, err := s.cfg.Git.Run(ctx, gitRun(s, in, "log", "--format=%H", "--find-object="+h.id, "-t", "-m", head, "--not", "--all", "--alternate-refs"))
	if err != nil { // the place in history is help, not the verdict
		s.cfg.Log.WarnContext(ctx, "find the commit of a refused file", "error", err)
	}
	for line := range strings.Lines(string(out)) {
		commit = strings.TrimSpace(line) // the last one is the first that had it
	}
	where := "The file " + forge.OneLine(h.name, 200)
	if h.kind == "tree" {
		where = "A file's name in the folder " + forge.OneLine("/"+h.name, 200)
	}
	e := fault.New(fault.SecretFound, "%s has a secret in it%s.", where, since(commit)).With("file", forge.OneLine(h.name, 200))
	if commit != "" {
		e = e.With("commit", commit)
	}
	return e
}

func since(commit string) string {
	if commit == "" {
		return ""
	}
	return ", since commit " + commit
}
