package egress

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

var (
	errHostEmpty   = errors.New("the host name is empty")
	errHostLong    = errors.New("the host name is longer than 253 characters")
	errHostChars   = errors.New("a host name has only letters, digits, hyphens and dots (names in other scripts in their xn-- form)")
	errHostLabel   = errors.New("a part of the host name is empty, longer than 63 characters, or begins or ends with a hyphen")
	errHostAddress = errors.New("it is an IP address, not a host name")
)

// Host brings a host name into the one form in which names are compared: lower
// case, without a final dot, ASCII (RFC 1123, section 2.1). It refuses whatever
// some program may take for an IP address: by the rule of the WHATWG URL
// standard, a name whose last part is a number, be it decimal, octal or hex.
func Host(name string) (string, error) {
	name = strings.TrimSuffix(name, ".")
	switch {
	case name == "":
		return "", errHostEmpty
	case len(name) > 253:
		return "", errHostLong
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return "", errHostChars
		}
	}
	name = strings.ToLower(name)
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
			return "", errHostLabel
		}
	}
	if isNumber(labels[len(labels)-1]) {
		return "", errHostAddress
	}
	return name, nil
}

// isNumber: digits only, or hex after 0x.
func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// normal is a name, or the IP address of an operator's entry, as it is compared; empty when it is neither.
func normal(host string) string {
	if name, err := Host(host); err == nil {
		return name
	}
	if ip, err := netip.ParseAddr(unbracket(host)); err == nil && ip.Zone() == "" {
		return ip.String()
	}
	return ""
}

func unbracket(host string) string {
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			return inner
		}
	}
	return host
}

// splitPrivate reads an operator's host:port.
func splitPrivate(entry string) (host, port string, err error) {
	host, text, err := net.SplitHostPort(entry)
	if err != nil {
		return "", "", err
	}
	n, err := parsePort(text)
	if err != nil {
		return "", "", err
	}
	if host = normal(host); host == "" {
		return "", "", errHostChars
	}
	return host, strconv.Itoa(int(n)), nil
}

// parsePort takes a port in its only form.
func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, errors.New("the port is not a number from 1 to 65535")
	}
	return uint16(n), nil
}

// splitTarget reads host and port of a request; the port may be left out where standard is not 0.
func splitTarget(authority string, standard uint16) (string, uint16, error) {
	i := strings.LastIndexByte(authority, ':')
	if i < 0 || strings.HasSuffix(authority, "]") {
		if standard == 0 {
			return "", 0, errors.New("the port is missing")
		}
		return authority, standard, nil
	}
	port, err := parsePort(authority[i+1:])
	return authority[:i], port, err
}
