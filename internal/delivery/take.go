package delivery

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/gitcmd"
	"github.com/hearthd/hearth/internal/delivery/gitwire"
	"github.com/hearthd/hearth/internal/fault"
)

const incomingPrefix = "incoming-"

// Limits of a pack.
const (
	DefaultMaxPack = 1 << 30 // bytes
	MaxNewObjects  = 500_000
	MaxDepth       = 64   // folders of a path
	MaxPath        = 4096 // bytes
)

// TakeRequest hands over work.
type TakeRequest struct {
	Session string
	Turn    string
	Interim bool   // of a turn that goes on
	Head    string // commit; empty when there is none at all
	Base    string // what Files, Insertions, Deletions and Commits are counted from; empty: nothing
	// Pack is a git pack; it may be thin, or empty. What follows it is ignored.
	Pack     io.Reader
	MaxBytes int64    // of the pack; 0: DefaultMaxPack
	Secrets  [][]byte // values to look for; those below secret.MinBytes are not
}

// Taken is work that was taken.
type Taken struct {
	Head       string
	Changed    bool // the tree is another than Base's
	Commits    int64
	Files      int64
	Insertions int64
	Deletions  int64
	Stat       string // for people; at most 16 KiB
}

// Take checks a pack and keeps it: every object and link, sizes, paths, secrets.
// What is refused leaves nothing behind. Again with the same pack is fine.
// Codes: PACK_REFUSED, PACK_TOO_LARGE, SECRET_FOUND, DISK_FULL.
func (s *Store) Take(ctx context.Context, req TakeRequest) (Taken, error) {
	dir, err := s.existing(req.Session)
	if err != nil {
		return Taken{}, err
	}
	if !validID.MatchString(req.Turn) {
		return Taken{}, fault.New(fault.InvalidInput, "That is not the id of a turn.")
	}
	unlock, err := s.locks.lock(ctx, "session "+req.Session)
	if err != nil {
		return Taken{}, err
	}
	defer unlock()
	format, err := s.formatOf(ctx, dir)
	if err != nil {
		return Taken{}, err
	}
	if req.Head == "" {
		return Taken{}, nil
	}
	for _, id := range []string{req.Head, req.Base} {
		if id != "" && gitwire.FormatOf(id) != format {
			return Taken{}, fault.New(fault.PackRefused, "%.80q is not the id of a commit in a %s repository.", id, format)
		}
	}
	if req.Base != "" {
		switch id, err := s.resolve(ctx, dir, req.Base); {
		case err != nil:
			return Taken{}, err
		case id == "":
			return Taken{}, fault.New(fault.PackRefused, "The work is told to begin at %s, which the server does not have.", req.Base)
		}
	}
	in, err := s.receive(ctx, dir, req.Pack, req.MaxBytes)
	if err != nil {
		return Taken{}, err
	}
	defer in.drop()
	if err := s.check(ctx, in, req); err != nil {
		return Taken{}, err
	}
	if err := in.keep(); err != nil {
		return Taken{}, err
	}
	if err := s.record(ctx, dir, req); err != nil {
		return Taken{}, err
	}
	return s.measure(ctx, dir, format, req)
}

// record moves the refs.
func (s *Store) record(ctx context.Context, dir string, req TakeRequest) error {
	if req.Interim {
		return s.updateRefs(ctx, dir, "update refs/hearth/interim "+req.Head+"\n")
	}
	branch, err := s.local(ctx, dir, "symbolic-ref", "HEAD")
	if err != nil {
		return fmt.Errorf("read the session's branch: %w", err)
	}
	had, err := s.resolve(ctx, dir, "refs/hearth/interim")
	if err != nil {
		return err
	}
	cmds := "update refs/hearth/turns/" + req.Turn + " " + req.Head + "\n" +
		"update refs/hearth/head " + req.Head + "\n" +
		"update " + strings.TrimSpace(branch) + " " + req.Head + "\n"
	if had != "" {
		cmds += "delete refs/hearth/interim\n"
	}
	return s.updateRefs(ctx, dir, cmds)
}

// incoming is a folder of objects that do not belong to the repository yet, in
// the way of git's own receive-pack: nothing sees them but a run with its environment.
type incoming struct {
	repo, dir string
	env       []string
	packed    bool
}

func (in *incoming) drop() { _ = os.RemoveAll(in.dir) } // what stays is cleared by Open

// receive reads the pack into an incoming folder.
func (s *Store) receive(ctx context.Context, repo string, pack io.Reader, limit int64) (_ *incoming, err error) {
	if limit <= 0 {
		limit = DefaultMaxPack
	}
	dir, err := os.MkdirTemp(repo, incomingPrefix)
	if err != nil {
		return nil, diskError(err, "make a folder for the pack")
	}
	in := &incoming{repo: repo, dir: dir, env: []string{
		"GIT_OBJECT_DIRECTORY=" + dir,
		"GIT_ALTERNATE_OBJECT_DIRECTORIES=" + filepath.Join(repo, "objects"),
	}}
	defer func() {
		if err != nil {
			in.drop()
		}
	}()
	if err := os.Mkdir(filepath.Join(dir, "pack"), 0o700); err != nil {
		return nil, diskError(err, "make a folder for the pack")
	}
	body := bufio.NewReader(pack)
	head, err := body.Peek(12)
	switch {
	case errors.Is(err, io.EOF) && len(head) == 0:
		return in, nil // no pack at all
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fault.Wrap(err, fault.PackFailed, "The pack broke off.")
	case len(head) < 12 || !bytes.HasPrefix(head, []byte("PACK")):
		return nil, fault.New(fault.PackRefused, "What was handed over is not a git pack.")
	}
	if binary.BigEndian.Uint32(head[8:]) == 0 {
		if _, err := io.Copy(io.Discard, io.LimitReader(body, 1<<10)); err != nil {
			return nil, fault.Wrap(err, fault.PackFailed, "The pack broke off.")
		}
		return in, nil
	}
	src := &counted{r: body, left: limit}
	_, _, err = s.cfg.Git.Run(ctx, gitcmd.Run{
		Dir: repo,
		Args: []string{
			"-c", "pack.threads=1", "index-pack", "--stdin", "--fix-thin", gitcmd.Strict(),
			"--max-input-size=" + strconv.FormatInt(limit, 10),
		},
		Env: append(in.env, "GIT_ALLOC_LIMIT=512m"), Stdin: src, Timeout: s.cfg.LocalTimeout,
	})
	if err != nil {
		return nil, packError(err, src, limit)
	}
	in.packed = true
	return in, nil
}

// counted remembers whether the sender broke off and whether there was too much.
type counted struct {
	r    io.Reader
	left int64
	over bool
	err  error
}

func (c *counted) Read(p []byte) (int, error) {
	if c.left <= 0 {
		// One byte more tells a full pack from one that is too long.
		n, err := c.r.Read(p[:min(1, len(p))])
		if n > 0 {
			c.over = true
			return 0, io.ErrUnexpectedEOF
		}
		return 0, err
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

func packError(err error, src *counted, limit int64) error {
	var e *gitcmd.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("read the pack: %w", err)
	}
	switch {
	case src.over || strings.Contains(e.Stderr, "pack exceeds maximum allowed size"):
		return fault.Wrap(err, fault.PackTooLarge, "The work is larger than %d MiB.", limit>>20)
	case strings.Contains(e.Stderr, "attempting to allocate"):
		return fault.Wrap(err, fault.PackTooLarge, "The work has an object that is larger than may be held in memory.")
	case src.err != nil:
		return fault.Wrap(errors.Join(src.err, err), fault.PackFailed, "The pack broke off.")
	case strings.Contains(e.Stderr, "No space left"):
		return fault.Wrap(err, fault.DiskFull, "The server's disk is full: the work could not be taken.")
	case e.Timeout:
		return fault.Wrap(err, fault.PackTooLarge, "Checking the work took too long.")
	case e.Exit < 0:
		return fmt.Errorf("read the pack: %w", err)
	}
	return fault.Wrap(err, fault.PackRefused, "Git refuses the pack: %s", forge.OneLine(fatalLine(e.Stderr), 300))
}

// keep moves the pack into the repository; its index last, since that makes it visible.
func (in *incoming) keep() error {
	if !in.packed {
		return nil
	}
	from, to := filepath.Join(in.dir, "pack"), filepath.Join(in.repo, "objects", "pack")
	if err := os.MkdirAll(to, 0o700); err != nil {
		return diskError(err, "keep the pack")
	}
	files, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("keep the pack: %w", err)
	}
	for _, idx := range []bool{false, true} {
		for _, f := range files {
			if (filepath.Ext(f.Name()) == ".idx") != idx {
				continue
			}
			if err := os.Rename(filepath.Join(from, f.Name()), filepath.Join(to, f.Name())); err != nil {
				return diskError(err, "keep the pack")
			}
		}
	}
	return nil
}

func diskError(err error, doing string) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.Wrap(err, fault.DiskFull, "The server's disk is full: the work could not be taken.")
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// check looks at what the pack brought before it belongs to the repository.
func (s *Store) check(ctx context.Context, in *incoming, req TakeRequest) error {
	run := func(args ...string) (string, error) {
		out, _, err := s.cfg.Git.Run(ctx, gitRun(s, in, args...))
		return string(out), err
	}
	kind, err := run("cat-file", "-t", req.Head)
	if err != nil {
		return checkError(err, "The pack does not have the commit %s.", req.Head)
	}
	if k := strings.TrimSpace(kind); k != "commit" {
		return fault.New(fault.PackRefused, "%s is a %s, not a commit.", req.Head, k)
	}
	out, err := run("rev-list", "--objects", req.Head, "--not", "--all", "--alternate-refs")
	if err != nil {
		return checkError(err, "The pack does not have everything that the commit %s needs.", req.Head)
	}
	if strings.Count(out, "\n") > MaxNewObjects {
		return fault.New(fault.PackTooLarge, "The work has more than %d objects.", MaxNewObjects)
	}
	var found []object
	for line := range strings.Lines(out) {
		id, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if len(name) > MaxPath || strings.Count(name, "/") >= MaxDepth {
			return fault.New(fault.PackRefused, "The path %s is deeper or longer than may be (%d folders, %d bytes).", forge.OneLine(name, 120), MaxDepth, MaxPath)
		}
		found = append(found, object{id: id, name: name})
	}
	return s.scan(ctx, in, req, found)
}

func checkError(err error, format string, args ...any) error {
	var e *gitcmd.Error
	if !errors.As(err, &e) || e.Exit < 0 && !e.Timeout && !e.Overflow {
		return fmt.Errorf("check the pack: %w", err)
	}
	if e.Overflow {
		return fault.Wrap(err, fault.PackTooLarge, "The work has more than %d objects.", MaxNewObjects)
	}
	if e.Timeout {
		return fault.Wrap(err, fault.PackTooLarge, "Checking the work took too long.")
	}
	return fault.Wrap(err, fault.PackRefused, format, args...)
}

// measure counts what changed.
func (s *Store) measure(ctx context.Context, dir, format string, req TakeRequest) (Taken, error) {
	t := Taken{Head: req.Head}
	from := req.Base
	if from == "" {
		from = emptyTree(format)
	}
	files, err := s.changes(ctx, dir, from, req.Head)
	if err != nil {
		return Taken{}, err
	}
	for _, f := range files {
		t.Files++
		t.Insertions += f.Insertions
		t.Deletions += f.Deletions
	}
	t.Changed = t.Files > 0
	args := []string{"rev-list", "--count", req.Head}
	if req.Base != "" {
		args = append(args, "^"+req.Base)
	}
	out, err := s.local(ctx, dir, args...)
	if err != nil {
		return Taken{}, fmt.Errorf("count commits: %w", err)
	}
	if t.Commits, err = strconv.ParseInt(strings.TrimSpace(out), 10, 64); err != nil {
		return Taken{}, fmt.Errorf("count commits: %w", err)
	}
	stat, err := s.local(ctx, dir, "diff", "--no-ext-diff", "--no-textconv", "-M", "--stat=80", "--stat-count=100", from, req.Head)
	if err != nil {
		return Taken{}, fmt.Errorf("diffstat: %w", err)
	}
	t.Stat = clip(stat, 16<<10)
	return t, nil
}

// gitRun is a run on the repository as it would be with the incoming objects.
func gitRun(s *Store, in *incoming, args ...string) gitcmd.Run {
	return gitcmd.Run{Dir: in.repo, Env: in.env, Args: args, Timeout: s.cfg.LocalTimeout}
}
