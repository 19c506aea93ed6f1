package delivery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/gitcmd"
	"github.com/hearthd/hearth/internal/delivery/gitwire"
	"github.com/hearthd/hearth/internal/fault"
)

// Change is one file of a diff.
type Change struct {
	Status  string `json:"status"` // added, deleted, modified, renamed, typechanged
	Path    string `json:"path"`   // bytes that are not UTF-8 are replaced
	OldPath string `json:"oldPath,omitempty"`
	// PathBytes is set when Path had to be altered; base64 in JSON.
	PathBytes []byte `json:"pathBytes,omitempty"`
	OldMode   string `json:"oldMode,omitempty"` // octal, as git has it: 100755, 120000 …
	NewMode   string `json:"newMode,omitempty"`
	// Insertions and Deletions count lines; both are 0 for a binary file.
	Insertions int64 `json:"insertions"`
	Deletions  int64 `json:"deletions"`
	Binary     bool  `json:"binary,omitempty"`
}

// MaxChanges bounds the files of a diff.
const MaxChanges = 10_000

// Diff is what lies between two commits.
type Diff struct {
	From, To  string // ids; From is empty when there was nothing before
	Changes   []Change
	Truncated bool // more than MaxChanges
}

// Names that [Store.Resolve] knows beside ids and "turns/<turn>".
const (
	RefBase    = "base"
	RefHead    = "head"
	RefInterim = "interim"
)

// Resolve gives the commit that a name stands for in a session: base, head,
// interim, turns/<turn>, or an id that the session has. Empty: there is none.
func (s *Store) Resolve(ctx context.Context, session, name string) (string, error) {
	dir, err := s.existing(session)
	if err != nil {
		return "", err
	}
	turn, isTurn := strings.CutPrefix(name, "turns/")
	switch {
	case name == RefBase, name == RefHead, name == RefInterim, isTurn && validID.MatchString(turn):
		return s.resolve(ctx, dir, "refs/hearth/"+name)
	case gitwire.FormatOf(name) != "":
		return s.resolve(ctx, dir, name)
	}
	return "", fault.New(fault.InvalidInput, "%q is not a commit of this session.", forge.OneLine(name, 80))
}

// ends resolves both ends of a diff; from may stand for nothing.
func (s *Store) ends(ctx context.Context, session, from, to string) (dir, fromID, toID string, err error) {
	if dir, err = s.existing(session); err != nil {
		return "", "", "", err
	}
	if toID, err = s.Resolve(ctx, session, to); err != nil {
		return "", "", "", err
	}
	if toID == "" {
		return "", "", "", fault.New(fault.NothingToDeliver, "There is no packed work of this session.")
	}
	if from == "" {
		return dir, "", toID, nil
	}
	if fromID, err = s.Resolve(ctx, session, from); err == nil && fromID == "" && from != RefBase {
		err = fault.New(fault.InvalidInput, "%q is not a commit of this session.", forge.OneLine(from, 80))
	}
	return dir, fromID, toID, err
}

func (s *Store) tree(ctx context.Context, dir, id string) (string, error) {
	if id != "" {
		return id, nil
	}
	format, err := s.formatOf(ctx, dir)
	return emptyTree(format), err
}

// Diff lists the files that differ between two commits, named as [Store.Resolve]
// knows them. An empty from, or a base that is not there, stands for nothing.
func (s *Store) Diff(ctx context.Context, session, from, to string) (Diff, error) {
	dir, a, b, err := s.ends(ctx, session, from, to)
	if err != nil {
		return Diff{}, err
	}
	old, err := s.tree(ctx, dir, a)
	if err != nil {
		return Diff{}, err
	}
	d := Diff{From: a, To: b}
	if d.Changes, err = s.changes(ctx, dir, old, b); err != nil {
		return Diff{}, err
	}
	if len(d.Changes) > MaxChanges {
		d.Changes, d.Truncated = d.Changes[:MaxChanges], true
	}
	return d, nil
}

// Patch writes the unified diff between two commits to w, at most limit bytes,
// cut at the end of a line. Names that are not plain are quoted as git does.
func (s *Store) Patch(ctx context.Context, session, from, to string, w io.Writer, limit int64) (truncated bool, err error) {
	dir, a, b, err := s.ends(ctx, session, from, to)
	if err != nil {
		return false, err
	}
	old, err := s.tree(ctx, dir, a)
	if err != nil {
		return false, err
	}
	out := &clipped{w: w, left: limit}
	_, _, err = s.cfg.Git.Run(ctx, gitcmd.Run{
		Dir: dir, Stdout: out, Timeout: s.cfg.LocalTimeout,
		Args: []string{"diff-tree", "-r", "-p", "-M", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", old, b},
	})
	switch {
	case out.err != nil:
		return false, out.err
	case out.cut:
		return true, nil
	case err != nil:
		return false, fmt.Errorf("make patch: %w", err)
	}
	return false, nil
}

// changes runs the diff of two trees.
func (s *Store) changes(ctx context.Context, dir, from, to string) ([]Change, error) {
	out, _, err := s.cfg.Git.Run(ctx, gitcmd.Run{
		Dir: dir, Timeout: s.cfg.LocalTimeout,
		Args: []string{"diff-tree", "-r", "-z", "-M", "--raw", "--numstat", "--no-ext-diff", "--no-textconv", from, to},
	})
	if err != nil {
		return nil, fmt.Errorf("list changes: %w", err)
	}
	return parseChanges(out)
}

// parseChanges reads the output of --raw --numstat -z: all raw entries, then all counts, in one order.
func parseChanges(out []byte) ([]Change, error) {
	f := fields(out)
	var list []Change
	for len(f) > 0 && bytes.HasPrefix(f[0], []byte(":")) {
		words := strings.Fields(string(f[0]))
		if len(words) != 5 || len(f) < 2 {
			return nil, fmt.Errorf("raw diff entry %.100q", f[0])
		}
		c := Change{OldMode: strings.TrimPrefix(words[0], ":"), NewMode: words[1]}
		path := f[1]
		f = f[2:]
		switch words[4][0] {
		case 'A':
			c.Status, c.OldMode = "added", ""
		case 'D':
			c.Status, c.NewMode = "deleted", ""
		case 'T':
			c.Status = "typechanged"
		case 'R', 'C':
			if len(f) == 0 {
				return nil, errors.New("raw diff entry without its new name")
			}
			c.Status, c.OldPath = "renamed", strings.ToValidUTF8(string(path), "�")
			path, f = f[0], f[1:]
		default:
			c.Status = "modified"
		}
		c.setPath(path)
		list = append(list, c)
	}
	for i := range list {
		if len(f) == 0 {
			return nil, errors.New("diff without its counts")
		}
		n := bytes.SplitN(f[0], []byte("\t"), 3)
		if len(n) != 3 {
			return nil, fmt.Errorf("diff count %.100q", f[0])
		}
		f = f[1:]
		if len(n[2]) == 0 { // a rename: both names follow
			if len(f) < 2 {
				return nil, errors.New("diff count without its names")
			}
			f = f[2:]
		}
		c := &list[i]
		if string(n[0]) == "-" {
			c.Binary = true
			continue
		}
		var err1, err2 error
		c.Insertions, err1 = strconv.ParseInt(string(n[0]), 10, 64)
		c.Deletions, err2 = strconv.ParseInt(string(n[1]), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("diff count: %w", err)
		}
	}
	return list, nil
}

func fields(out []byte) [][]byte {
	out = bytes.TrimSuffix(out, []byte{0})
	if len(out) == 0 {
		return nil
	}
	return bytes.Split(out, []byte{0})
}

func (c *Change) setPath(p []byte) {
	c.Path = string(p)
	if !utf8.Valid(p) {
		c.Path, c.PathBytes = strings.ToValidUTF8(string(p), "�"), bytes.Clone(p)
	}
}

// clipped passes whole lines up to a number of bytes, then fails the writer.
type clipped struct {
	w    io.Writer
	left int64
	cut  bool
	err  error // of w
}

var errCut = errors.New("cut")

func (c *clipped) Write(p []byte) (int, error) {
	if c.cut || c.err != nil {
		return 0, errCut
	}
	n := len(p)
	if int64(n) > c.left {
		p = p[:c.left]
		p = p[:bytes.LastIndexByte(p, '\n')+1]
		c.cut = true
	}
	c.left -= int64(len(p))
	if _, err := c.w.Write(p); err != nil {
		c.err = err
		return 0, err
	}
	if c.cut {
		return 0, errCut
	}
	return n, nil
}
