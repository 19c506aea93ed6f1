// Package egress is the door through which the programs of one session reach
// hosts of the public internet: those on an exact list and nothing else. It
// takes CONNECT and absolute-form requests of a forward proxy, bare TLS
// connections by their server name, and bare HTTP by its Host header. Names are
// resolved and judged on this side, and the judged address is dialed. What is
// inside TLS is not seen. Start at [New]; host rules are in [Host], address
// rules in [judge].
package egress

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/fault"
)

// Resolver finds the addresses of a host. The host comes without a final dot.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Limits of the door. A zero field gets the default named beside it.
type Limits struct {
	Concurrency int           // open exchanges: 64
	Bytes       int64         // of one exchange, each way: 4 GiB
	Requests    int64         // exchanges in the door's life: no limit
	Total       time.Duration // of one exchange: 1 h
	Idle        time.Duration // without a byte in either direction: 5 min
	Slow        time.Duration // without a byte of a request's body, or until a ClientHello is there: 30 s
	Dial        time.Duration // to resolve and to connect: 15 s
}

func (l *Limits) defaults() {
	door.Default(&l.Concurrency, 64)
	door.Default(&l.Bytes, 4<<30)
	door.Default(&l.Total, time.Hour)
	door.Default(&l.Idle, 5*time.Minute)
	door.Default(&l.Slow, 30*time.Second)
	door.Default(&l.Dial, 15*time.Second)
}

// Config of the door of one session.
type Config struct {
	// Allow gives the host names that may be reached now. It is asked for each
	// exchange, concurrently. Nil allows none.
	Allow func() []string
	// AllowPrivate lists host:port pairs, exactly, that may be at any port and any
	// address; the host may be an IP address in its usual notation. It is the
	// operator's, for registries of an internal network. The host must be in
	// Allow as well. Entries that [CheckPrivate] refuses allow nothing.
	AllowPrivate []string

	Resolver Resolver                                                          // nil: the host's
	Dial     func(ctx context.Context, network, addr string) (net.Conn, error) // nil: the host's; addr is a judged IP and port
	Local    func() ([]netip.Addr, error)                                      // addresses of this machine, refused like private ones; nil: its interfaces'
	Refused  func(host string)                                                 // told each name that is not on the list, concurrently
	Limits   Limits
	Log      *slog.Logger     // nil: no log
	Now      func() time.Time // nil: time.Now
}

// Door is the egress door of one session. As an [http.Handler] it is the forward
// proxy; [Door.ByHost] and [Door.TLS] are its other entrances. All share its limits.
type Door struct {
	cfg       Config
	private   map[string]bool // host:port
	transport *http.Transport
	slots     chan struct{}
	taken     atomic.Int64
	open      atomic.Int64

	mu     sync.Mutex
	bounds map[*bound]struct{} // of the exchanges that are open
}

// New makes a door. [Door.Close] ends its idle connections.
func New(cfg Config) *Door {
	cfg.Limits.defaults()
	if cfg.Allow == nil {
		cfg.Allow = func() []string { return nil }
	}
	if cfg.Resolver == nil {
		cfg.Resolver = rooted{net.DefaultResolver}
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	if cfg.Local == nil {
		cfg.Local = interfaceAddrs
	}
	if cfg.Refused == nil {
		cfg.Refused = func(string) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	d := &Door{cfg: cfg, private: map[string]bool{}, bounds: map[*bound]struct{}{}, slots: make(chan struct{}, cfg.Limits.Concurrency)}
	for _, entry := range cfg.AllowPrivate {
		if host, port, err := splitPrivate(entry); err == nil {
			d.private[net.JoinHostPort(host, port)] = true
		} else {
			cfg.Log.Error("entry for a private address is not used", "entry", entry, "error", err)
		}
	}
	d.transport = d.newTransport()
	return d
}

// Close ends idle connections; exchanges that are open go on.
func (d *Door) Close() { d.transport.CloseIdleConnections() }

// Cut ends every exchange that is open, tunnels too, and returns when they are
// gone, after a second at the latest. It is called when [Config.Allow] has come to
// give less: what is begun afterwards is judged by that, and nothing is left of before.
func (d *Door) Cut() {
	d.mu.Lock()
	var gone []<-chan struct{}
	for b := range d.bounds {
		b.cancel(fault.New(fault.EgressRefused, "The hosts that may be reached have changed, which ended this connection."))
		gone = append(gone, b.gone)
	}
	d.mu.Unlock()
	d.transport.CloseIdleConnections()
	late := time.After(cutTime)
	for _, g := range gone {
		select {
		case <-g:
		case <-late:
			d.cfg.Log.Warn("exchanges did not end at once")
			return
		}
	}
}

const cutTime = time.Second

// Open is the number of exchanges that are not at their end.
func (d *Door) Open() int { return int(d.open.Load()) }

// target is a host that may be reached.
type target struct {
	host    string // normalised name, or an IP address that the operator listed
	port    uint16
	private bool // the operator allowed any address
}

func (t target) String() string { return net.JoinHostPort(t.host, strconv.Itoa(int(t.port))) }

// permit decides by the name. standard is the only port that is not the operator's.
// Codes: EGRESS_REFUSED.
func (d *Door) permit(host string, port, standard uint16) (target, error) {
	t := target{port: port}
	name, err := Host(host)
	if err == nil {
		t.host = name
	} else if ip, ipErr := netip.ParseAddr(unbracket(host)); ipErr == nil && ip.Zone() == "" {
		t.host = ip.String()
	} else {
		return target{}, fault.Wrap(err, fault.EgressRefused, "%q is not a host name that can be allowed.", door.Printable(host, maxWords))
	}
	t.private = d.private[t.String()]
	if err != nil && !t.private {
		return target{}, fault.New(fault.EgressRefused, "%s is an IP address; only host names are passed.", t.host)
	}
	if !slices.ContainsFunc(d.cfg.Allow(), func(allowed string) bool { return normal(allowed) == t.host }) {
		d.cfg.Refused(t.host)
		return target{}, fault.New(fault.EgressRefused, "%s is not on the session's allowlist.", t.host)
	}
	if port != standard && !t.private {
		return target{}, fault.New(fault.EgressRefused, "%s is allowed, but not at port %d: only at %d.", t.host, port, standard)
	}
	return t, nil
}

// MaxHosts is how many hosts one list may have.
const MaxHosts = 32

// CheckAllow brings the hosts of one list of the operator's into their one form,
// sorted and each once. never are hosts that have a door of their own: the
// model providers' and the forge's. All mistakes are reported at once.
// Code: CONFIG_INVALID.
func CheckAllow(hosts, never []string) ([]string, error) {
	var out, wrong []string
	for _, h := range hosts {
		name, err := Host(h)
		switch {
		case err != nil:
			wrong = append(wrong, fmt.Sprintf("%q: %v.", door.Printable(h, maxWords), err))
		case !strings.Contains(name, "."):
			wrong = append(wrong, fmt.Sprintf("%q: it is not the full name of a public host.", name))
		case slices.ContainsFunc(never, func(n string) bool { return normal(n) == name }):
			wrong = append(wrong, fmt.Sprintf("%q: it is reached through a door of its own and cannot be added.", name))
		default:
			out = append(out, name)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if len(out) > MaxHosts {
		wrong = append(wrong, fmt.Sprintf("There are %d hosts; at most %d can be added.", len(out), MaxHosts))
	}
	if len(wrong) > 0 {
		return nil, fault.New(fault.ConfigInvalid, "These hosts cannot be allowed: %s", strings.Join(wrong, " "))
	}
	return out, nil
}

// CheckPrivate checks the operator's host:port pairs. Code: CONFIG_INVALID.
func CheckPrivate(entries []string) error {
	var wrong []string
	for _, e := range entries {
		if _, _, err := splitPrivate(e); err != nil {
			wrong = append(wrong, fmt.Sprintf("%q", door.Printable(e, maxWords)))
		}
	}
	if len(wrong) > 0 {
		return fault.New(fault.ConfigInvalid, "These are not host:port, without wildcards: %s.", strings.Join(wrong, ", "))
	}
	return nil
}

// Registries are the hosts that package managers fetch from; they are reached
// in the setup phase without being asked for.
func Registries() []string {
	return []string{
		"registry.npmjs.org", "registry.yarnpkg.com", "repo.yarnpkg.com", // JavaScript
		"pypi.org", "files.pythonhosted.org", // Python
		"proxy.golang.org", "sum.golang.org", // Go
		"crates.io", "index.crates.io", "static.crates.io", // Rust
		"rubygems.org", "index.rubygems.org", // Ruby
		"repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org", "services.gradle.org", // JVM
		"packagist.org", "repo.packagist.org", // PHP
		"api.nuget.org",                          // .NET
		"hex.pm", "repo.hex.pm", "builds.hex.pm", // Elixir
		"deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com", "dl-cdn.alpinelinux.org", // systems
	}
}
