package egress

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/hearthd/hearth/internal/fault"
)

func TestHost(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"example.com":              "example.com",
		"EXAMPLE.Com":              "example.com",
		"example.com.":             "example.com",
		"xn--bcher-kva.example":    "xn--bcher-kva.example",
		"a-b.c1.example":           "a-b.c1.example",
		"localhost":                "localhost",
		"1.2.3.4.example":          "1.2.3.4.example",
		"0x7f.example":             "0x7f.example",
		"9gag.com":                 "9gag.com",
		"face.b00c":                "face.b00c",
		strings.Repeat("a", 63):    strings.Repeat("a", 63),
		"":                         "",
		".":                        "",
		"example.com..":            "",
		".example.com":             "",
		"a..b":                     "",
		"-a.example":               "",
		"a-.example":               "",
		"a_b.example":              "",
		"*.example.com":            "",
		"bücher.example":           "",
		"example。com":              "", // an ideographic full stop
		"ｅxample.com":              "", // a fullwidth letter
		"ex\u00adample.com":        "", // a soft hyphen
		"example.com\x00.evil":     "",
		"exa mple.com":             "",
		"example.com:443":          "",
		"user@example.com":         "",
		"example.com/":             "",
		"example%2ecom":            "",
		strings.Repeat("a", 64):    "",
		strings.Repeat("a.", 128):  "",
		"127.0.0.1":                "",
		"127.0.0.1.":               "",
		"127.1":                    "",
		"127.0.1":                  "",
		"2130706433":               "",
		"017700000001":             "",
		"0177.0.0.1":               "",
		"0x7f000001":               "",
		"0X7F.1":                   "",
		"0x7f.0.0.0x1":             "",
		"169.254.169.254":          "",
		"0xa9fea9fe":               "",
		"example.123":              "",
		"example.0x1":              "",
		"example.0x":               "",
		"::1":                      "",
		"[::1]":                    "",
		"[::ffff:127.0.0.1]":       "",
		"::ffff:7f00:1":            "",
		"fe80::1%eth0":             "",
		"[fe80::1%25eth0]":         "",
		"①②⑦.0.0.1":                "",
		"１２７.0.0.1":                "",
		"0":                        "",
		"4294967296":               "",
		"127.0.0.1.nip.io":         "127.0.0.1.nip.io", // a name; its address is judged
		"xn--" + "a" + ".xn--p1ai": "xn--a.xn--p1ai",
	} {
		got, err := Host(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Host(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestPublic(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"1.1.1.1": true, "93.184.216.34": true, "9.255.255.255": true, "11.0.0.0": true, "100.63.255.255": true, "100.128.0.0": true,
		"172.15.255.255": true, "172.32.0.0": true, "192.167.255.255": true, "192.169.0.0": true, "223.255.255.255": true,
		"0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false, "100.64.0.1": false, "100.127.255.255": false, "127.0.0.1": false, "127.255.255.254": false,
		"169.254.169.254": false, "169.254.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.0.0.192": false, "192.0.2.1": false,
		"192.88.99.1": false, "192.168.0.1": false, "198.18.0.1": false, "198.19.255.255": false, "198.51.100.1": false, "203.0.113.1": false,
		"224.0.0.1": false, "239.255.255.250": false, "240.0.0.1": false, "255.255.255.255": false,
		"2606:4700::1111": true, "2a00:1450:4001::200e": true, "2001:4860:4860::8888": true,
		"::": false, "::1": false, "::127.0.0.1": false, "::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:1.1.1.1": true, "::ffff:169.254.169.254": false,
		"fc00::1": false, "fd00:ec2::254": false, "fd12:3456::1": false, "fe80::1": false, "fe80::1%eth0": false, "fec0::1": false, "ff02::1": false,
		"64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false, "64:ff9b::101:101": true, "64:ff9b:1::101:101": false,
		"2002:7f00:1::": false, "2002:a9fe:a9fe::1": false, "2002:c0a8:1::1": false, "2002:101:101::1": true,
		"2001::1": false, "2001:0:4136:e378:8000:63bf:3fff:fdd2": false, "2001:10::1": false, "2001:20::1": false, "2001:db8::1": false, "3fff::1": false, "100::1": false, "5f00::1": false,
		"2606:4700::1%x": false,
	} {
		if got := public(netip.MustParseAddr(text)); got != want {
			t.Errorf("public(%s) = %t", text, got)
		}
	}
	if public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

func TestCheckAllow(t *testing.T) {
	t.Parallel()
	got, err := CheckAllow([]string{"B.example.", "a.example", "b.EXAMPLE"}, []string{"api.example"})
	if diff := cmp.Diff([]string{"a.example", "b.example"}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	_, err = CheckAllow([]string{"ok.example", "*.example", "10.0.0.1", "metadata", "API.example."}, []string{"api.example"})
	if fault.CodeOf(err) != fault.ConfigInvalid {
		t.Fatal(err)
	}
	for _, want := range []string{`"*.example"`, `"10.0.0.1": it is an IP address`, `"metadata": it is not the full name`, `"api.example": it is reached`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
	many := make([]string, MaxHosts+1)
	for i := range many {
		many[i] = fmt.Sprintf("h%d.example", i)
	}
	if _, err := CheckAllow(many, nil); fault.CodeOf(err) != fault.ConfigInvalid {
		t.Error(err)
	}
	if _, err := CheckAllow(many[1:], nil); err != nil {
		t.Error(err)
	}
}

func TestCheckPrivate(t *testing.T) {
	t.Parallel()
	if err := CheckPrivate([]string{"127.0.0.1:8080", "[::1]:443", "registry:5000", "Registry.internal.:443"}); err != nil {
		t.Error(err)
	}
	for _, e := range []string{"registry", "registry:0", "registry:08", "*:443", "10.0.0.0/8:443", "[fe80::1%eth0]:1", ":443", "0x7f.1:80"} {
		if err := CheckPrivate([]string{e}); fault.CodeOf(err) != fault.ConfigInvalid {
			t.Errorf("%q: %v", e, err)
		}
	}
}

func TestRegistriesAreHosts(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, h := range Registries() {
		if got, err := Host(h); err != nil || got != h || seen[h] {
			t.Errorf("%q: %q %v", h, got, err)
		}
		seen[h] = true
	}
}

// clientHello is what a real client sends first.
func clientHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	var sent bytes.Buffer
	// The server says nothing: the handshake ends after the first flight.
	err := tls.Client(&recorder2{out: &sent}, cfg).Handshake()
	if !errors.Is(err, io.EOF) {
		t.Fatalf("handshake: %v", err)
	}
	return sent.Bytes()
}

type recorder2 struct {
	recorder
	out *bytes.Buffer
}

func (r *recorder2) Read([]byte) (int, error)    { return 0, io.EOF }
func (r *recorder2) Write(p []byte) (int, error) { return r.out.Write(p) }

// echConfigList offers encryption of the ClientHello under a public name (RFC 9849, section 4).
func echConfigList(t testing.TB, publicName string) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var c []byte
	c = append(c, 7)                             // config id
	c = binary.BigEndian.AppendUint16(c, 0x0020) // DHKEM(X25519)
	c = binary.BigEndian.AppendUint16(c, 32)     //
	c = append(c, key.PublicKey().Bytes()...)    //
	c = append(c, 0, 4, 0, 1, 0, 1)              // HKDF-SHA256, AES-128-GCM
	c = append(c, 32, byte(len(publicName)))     // longest name, name
	c = append(append(c, publicName...), 0, 0)   // no extensions
	one := binary.BigEndian.AppendUint16(nil, extECH)
	one = binary.BigEndian.AppendUint16(one, uint16(len(c)))
	one = append(one, c...)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(one))), one...)
}

func echClient(t testing.TB, inner, outer string) *tls.Config {
	return &tls.Config{ServerName: inner, MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: echConfigList(t, outer)}
}

func TestReadHello(t *testing.T) {
	t.Parallel()
	plain := clientHello(t, &tls.Config{ServerName: "Example.COM"})
	split := splitRecords(plain, 40)
	for _, tc := range []struct {
		name   string
		in     []byte
		host   string
		hidden bool
		code   fault.Code
	}{
		{name: "plain", in: plain, host: "example.com"},
		{name: "tls 1.2", in: clientHello(t, &tls.Config{ServerName: "example.com", MaxVersion: tls.VersionTLS12}), host: "example.com"},
		{name: "many records", in: split, host: "example.com"},
		{name: "bytes behind it", in: append(bytes.Clone(plain), "early data"...), host: "example.com"},
		{name: "no name", in: clientHello(t, &tls.Config{InsecureSkipVerify: true})},
		{name: "address", in: clientHello(t, &tls.Config{ServerName: "127.0.0.1"})}, // clients send none
		{name: "ech", in: clientHello(t, echClient(t, "inner.example", "example.com")), host: "example.com", hidden: true},
		{name: "half", in: plain[:len(plain)/2], code: fault.EgressNameRefused},
		{name: "nothing", in: nil, code: fault.EgressNameRefused},
		{name: "http", in: []byte("GET / HTTP/1.1\r\n\r\n"), code: fault.EgressNameRefused},
		{name: "ssh", in: []byte("SSH-2.0-x\r\n"), code: fault.EgressNameRefused},
		{name: "name with a port", in: renamed(plain, "example.com", "exampl:1com"), code: fault.EgressNameRefused},
		{name: "number for a name", in: renamed(plain, "example.com", "127.000.0.1"), code: fault.EgressNameRefused},
		{name: "zero byte", in: renamed(plain, "example.com", "example\x00com"), code: fault.EgressNameRefused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, r := range []io.Reader{bytes.NewReader(tc.in), iotest.OneByteReader(bytes.NewReader(tc.in))} {
				h, err := readHello(t.Context(), r)
				if fault.CodeOf(err) != tc.code || h.name != tc.host || h.hidden != tc.hidden {
					t.Errorf("%q hidden=%t %v", h.name, h.hidden, err)
				}
				if err == nil && (!bytes.HasPrefix(tc.in, h.raw) || len(h.raw) == 0) {
					t.Error("what was read is not what is sent on")
				}
			}
		})
	}
}

// splitRecords puts one handshake message into records of at most n bytes.
func splitRecords(record []byte, n int) []byte {
	var out []byte
	for body := record[5:]; len(body) > 0; {
		k := min(n, len(body))
		out = append(out, 22, 3, 1, byte(k>>8), byte(k))
		out = append(out, body[:k]...)
		body = body[k:]
	}
	return out
}

// renamed puts another name of the same length into a ClientHello.
func renamed(hello []byte, from, to string) []byte {
	return bytes.ReplaceAll(bytes.ReplaceAll(hello, []byte("Example.COM"), []byte(from)), []byte(from), []byte(to))
}

func FuzzHost(f *testing.F) {
	for _, s := range []string{"example.com", "0x7f.1", "[::1]", "a.b.", "2130706433", "ｅ.com", "a-b.c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := Host(in)
		if err != nil {
			return
		}
		if again, err := Host(got); err != nil || again != got {
			t.Errorf("%q is not stable: %q %v", got, again, err)
		}
		if !strings.EqualFold(strings.TrimSuffix(in, "."), got) {
			t.Errorf("%q became %q", in, got)
		}
		if a, err := netip.ParseAddr(got); err == nil {
			t.Errorf("%q is the address %s", in, a)
		}
		if net.ParseIP(got) != nil {
			t.Errorf("%q is an address", in)
		}
		if u, err := url.Parse("http://" + got + "/"); err != nil || u.Host != got || u.Port() != "" {
			t.Errorf("%q is not a host of a URL: %v", got, err)
		}
	})
}

func FuzzReadHello(f *testing.F) {
	f.Add(clientHello(f, &tls.Config{ServerName: "example.com"}))
	f.Add(clientHello(f, &tls.Config{ServerName: "example.com", MaxVersion: tls.VersionTLS12}))
	f.Add(clientHello(f, echClient(f, "inner.example", "example.com")))
	f.Add(splitRecords(clientHello(f, &tls.Config{ServerName: "example.com"}), 30))
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := readHello(t.Context(), bytes.NewReader(in))
		if !bytes.HasPrefix(in, h.raw) {
			t.Error("what was read is not what is sent on")
		}
		if err != nil {
			return
		}
		if h.name != "" {
			if again, err := Host(h.name); err != nil || again != h.name {
				t.Errorf("name %q: %v", h.name, err)
			}
			if !bytes.Contains(bytes.ToLower(in), []byte(h.name)) && len(splitFree(in)) == 0 {
				t.Errorf("name %q is not in the bytes", h.name)
			}
		}
	})
}

// splitFree tells of more than one record: a name may lie across them.
func splitFree(in []byte) []byte {
	if len(in) > 5 && int(in[3])<<8|int(in[4]) < len(in)-5 {
		return in
	}
	return nil
}

func FuzzSplitTarget(f *testing.F) {
	for _, s := range []string{"example.com:443", "[::1]:443", "a:0443", "a:+1", ":443", "a:b:1", "a"} {
		f.Add(s)
	}
	d := New(Config{Allow: func() []string { return []string{"example.com"} }})
	f.Fuzz(func(t *testing.T, in string) {
		host, port, err := splitTarget(in, 0)
		if err != nil {
			return
		}
		got, err := d.permit(host, port, 443)
		if err == nil && !strings.EqualFold(in, "example.com:443") && !strings.EqualFold(in, "example.com.:443") {
			t.Errorf("%q passes as %s", in, got)
		}
	})
}
