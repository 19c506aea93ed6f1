// Package local is what the providers that keep their sandboxes on this machine
// share: what a [sandbox.Spec] may say, the identity and the end of processes, a
// command's streams, locks by sandbox. It knows no provider and holds no state.
package local

import (
	"context"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hearthd/hearth/internal/fault"
	"github.com/hearthd/hearth/internal/sandbox"
)

// IDMax is the length of the longest id in bytes.
const IDMax = 48

var (
	idPattern    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	labelPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
)

// IDOK tells whether an id may name a sandbox, and so a file.
func IDOK(id string) bool { return len(id) <= IDMax && idPattern.MatchString(id) }

// Validate refuses what could not be made or would reach outside.
func Validate(s sandbox.Spec) error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.InvalidInput, "The sandbox cannot be made: "+format, args...)
	}
	if !IDOK(s.ID) {
		return bad("the id %q must be 1 to %d of a-z, 0-9 and -.", s.ID, IDMax)
	}
	for k, v := range s.Labels {
		if !labelPattern.MatchString(k) || (v != "" && !labelPattern.MatchString(v)) {
			return bad("the label %q=%q may have only letters, digits, '.', '_' and '-'.", k, v)
		}
	}
	if len(s.Command) == 0 || !path.IsAbs(s.Command[0]) {
		return bad("the command must be an absolute path.")
	}
	for _, e := range s.Env {
		if !strings.Contains(e, "=") || strings.ContainsRune(e, 0) {
			return bad("an environment entry is not of the form KEY=VALUE.")
		}
	}
	if !hostOK(s.Hostname) && s.Hostname != "" {
		return bad("the host name %q is not valid.", s.Hostname)
	}
	for _, h := range s.Hosts {
		if !hostOK(h) {
			return bad("the host name %q is not valid.", h)
		}
	}
	if s.DoorDir != "" && !cleanAbs(s.DoorDir) {
		return bad("the door folder %q is not a clean absolute path.", s.DoorDir)
	}
	for _, b := range s.Binds {
		if !cleanAbs(b.Source) || !cleanAbs(b.Target) || b.Target == "/" {
			return bad("the bind %q to %q needs clean absolute paths.", b.Source, b.Target)
		}
	}
	return nil
}

func cleanAbs(p string) bool { return filepath.IsAbs(p) && filepath.Clean(p) == p }

func hostOK(h string) bool {
	if len(h) == 0 || len(h) > 253 {
		return false
	}
	for _, r := range h {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_') {
			return false
		}
	}
	return true
}

// Bears tells whether labels have all that are wanted.
func Bears(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// HostsFile is the content of /etc/hosts.
func HostsFile(s sandbox.Spec) []byte {
	names := map[string]bool{"localhost": true}
	if s.Hostname != "" {
		names[s.Hostname] = true
	}
	for _, h := range s.Hosts {
		names[h] = true
	}
	var out strings.Builder
	for _, n := range slices.Sorted(maps.Keys(names)) { // one a line: some resolvers bound the length of one
		fmt.Fprintf(&out, "127.0.0.1 %s\n", n)
	}
	out.WriteString("::1 localhost\n")
	return []byte(out.String())
}

// Fill puts d where l says nothing.
func Fill(l, d sandbox.Limits) sandbox.Limits {
	for _, f := range []struct{ v, d *int64 }{
		{&l.CPUMillis, &d.CPUMillis}, {&l.MemoryBytes, &d.MemoryBytes}, {&l.DiskBytes, &d.DiskBytes},
		{&l.TmpBytes, &d.TmpBytes}, {&l.Processes, &d.Processes},
	} {
		if *f.v <= 0 {
			*f.v = *f.d
		}
	}
	return l
}

// Locks is a set of locks by sandbox, so that a create and two deletes of one
// sandbox follow each other while others go on.
type Locks struct {
	mu   sync.Mutex
	held map[string]*keyLock
}

type keyLock struct {
	ch    chan struct{}
	users int
}

// Lock waits for the lock of a key; unlock must be called.
func (k *Locks) Lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	if k.held == nil {
		k.held = map[string]*keyLock{}
	}
	l := k.held[key]
	if l == nil {
		l = &keyLock{ch: make(chan struct{}, 1)}
		k.held[key] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.held, key)
		}
	}
	select {
	case l.ch <- struct{}{}:
		return func() { <-l.ch; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
