package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// notPublic are the IPv4 blocks that are not globally reachable (IANA special-purpose
// registry, RFC 6890), and those of relays and tests.
var notPublic4 = prefixes(
	"0.0.0.0/8",       // this network
	"10.0.0.0/8",      // private
	"100.64.0.0/10",   // shared by carriers
	"127.0.0.0/8",     // loopback
	"169.254.0.0/16",  // link-local, with the clouds' metadata
	"172.16.0.0/12",   // private
	"192.0.0.0/24",    // protocol assignments
	"192.0.2.0/24",    // documentation
	"192.88.99.0/24",  // 6to4 relays
	"192.168.0.0/16",  // private
	"198.18.0.0/15",   // benchmarks
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"224.0.0.0/4",     // multicast
	"240.0.0.0/4",     // reserved, broadcast
)

var (
	global6    = netip.MustParsePrefix("2000::/3") // all that is given out; unique local, link-local and multicast are outside
	notPublic6 = prefixes(
		"2001::/23",     // protocol assignments: Teredo, ORCHID, benchmarks
		"2001:db8::/32", // documentation
		"3fff::/20",     // documentation
	)
	nat64  = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052: an IPv4 address in the last four bytes
	sixTo4 = netip.MustParsePrefix("2002::/16")    // RFC 3056: an IPv4 address after the prefix
)

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(texts))
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// public tells whether an address is one of the public internet. An address that
// carries an IPv4 address is judged by that one.
func public(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" {
		return false
	}
	if a = a.Unmap(); a.Is4() {
		return !slices.ContainsFunc(notPublic4, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return public(netip.AddrFrom4([4]byte(b[12:16])))
	case sixTo4.Contains(a):
		return public(netip.AddrFrom4([4]byte(b[2:6])))
	case !global6.Contains(a):
		return false
	}
	return !slices.ContainsFunc(notPublic6, func(p netip.Prefix) bool { return p.Contains(a) })
}

// judge refuses a set of addresses in which one is not public or is this
// machine's own: a name that leads to both is up to something.
func judge(addrs, local []netip.Addr) error {
	for _, a := range addrs {
		if !public(a) {
			return fmt.Errorf("%s is not a public address", a)
		}
		if slices.Contains(local, a.Unmap()) {
			return fmt.Errorf("%s is an address of this machine", a)
		}
	}
	return nil
}

// interfaceAddrs are this machine's own addresses.
func interfaceAddrs() ([]netip.Addr, error) {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	out := make([]netip.Addr, 0, len(found))
	for _, f := range found {
		if n, ok := f.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, a.Unmap())
			}
		}
	}
	return out, nil
}

// rooted resolves names from the root, so that no search domain is tried.
type rooted struct{ *net.Resolver }

func (r rooted) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if strings.Contains(host, ".") {
		host += "."
	}
	return r.Resolver.LookupNetIP(ctx, network, host)
}

// resolve gives the addresses of a target, all of them judged.
// Codes: EGRESS_ADDRESS_REFUSED, EGRESS_UNREACHABLE.
func (d *Door) resolve(ctx context.Context, t target) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(t.host); err == nil { // only an operator's entry gets here
		return []netip.Addr{ip}, nil
	}
	addrs, err := d.cfg.Resolver.LookupNetIP(ctx, "ip", t.host)
	if err == nil && len(addrs) == 0 {
		err = errors.New("no addresses")
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.EgressUnreachable, "The name %s could not be resolved.", t.host)
	}
	if !t.private {
		local, err := d.cfg.Local()
		if err != nil {
			return nil, fault.Wrap(err, fault.EgressAddressRefused, "The addresses of %s could not be judged.", t.host)
		}
		if err := judge(addrs, local); err != nil {
			return nil, fault.Wrap(err, fault.EgressAddressRefused, "The name %s leads to an address that is not public.", t.host)
		}
	}
	// IPv4 first: many networks give names IPv6 addresses that lead nowhere.
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return a.Unmap().BitLen() - b.Unmap().BitLen() })
	return addrs, nil
}

// dial connects to a judged address of a target.
// Codes: EGRESS_ADDRESS_REFUSED, EGRESS_UNREACHABLE.
func (d *Door) dial(ctx context.Context, t target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Limits.Dial)
	defer cancel()
	addrs, err := d.resolve(ctx, t)
	if err != nil {
		return nil, err
	}
	var failed error
	for i, a := range addrs {
		conn, err := d.dialOne(ctx, a, t.port, len(addrs)-i)
		if err == nil {
			return conn, nil
		}
		failed = errors.Join(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fault.Wrap(failed, fault.EgressUnreachable, "No connection to %s.", t)
}

// dialOne leaves time for the addresses that are to be tried after this one.
func (d *Door) dialOne(ctx context.Context, a netip.Addr, port uint16, left int) (net.Conn, error) {
	if left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(d.cfg.Limits.Dial/time.Duration(left+1), time.Second))
		defer cancel()
	}
	return d.cfg.Dial(ctx, "tcp", net.JoinHostPort(a.Unmap().String(), strconv.Itoa(int(port))))
}
