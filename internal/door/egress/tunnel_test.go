package egress

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNameInside: what is asked for and what the TLS client then says must be the same.
func TestNameInside(t *testing.T) {
	t.Parallel()
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("passed") }), nil)
	for _, tc := range []struct {
		name string
		cfg  *tls.Config
	}{
		{"another allowed host", &tls.Config{ServerName: "other.example"}},
		{"a denied host", &tls.Config{ServerName: "denied.example"}},
		{"none", &tls.Config{InsecureSkipVerify: true}},
		{"encrypted", echClient(t, "denied.example", "example.com")},
	} {
		c := r.enterDoor(t, "egress")
		if status := connect(c, "example.com"); status != 200 {
			t.Fatal(status)
		}
		if err := tls.Client(c, tc.cfg).Handshake(); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	c := r.enterDoor(t, "egress")
	io.WriteString(c, "CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\nSSH-2.0-OpenSSH\r\n")
	if b, _ := io.ReadAll(c); !bytes.HasSuffix(b, alert(alertUnrecognizedName)) {
		t.Errorf("%q", b)
	}
	eventually(t, "audit", func() bool { return strings.Count(r.log.String(), `"code":"EGRESS_NAME_REFUSED"`) == 5 })
}

func TestTLSDoor(t *testing.T) {
	t.Parallel()
	r := newRig(t, hi, nil)
	r.names["private.example"] = [][]string{{"192.168.1.1"}}
	r.cfg.Allow = func() []string { return []string{"example.com", "private.example", "nowhere.example"} }
	c := tls.Client(r.enterDoor(t, "tls"), &tls.Config{ServerName: "example.com", RootCAs: r.pool})
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(b), "hi GET example.com/ ") {
		t.Errorf("%q %v", b, err)
	}
	for _, tc := range []struct {
		cfg  *tls.Config
		want string
	}{
		{&tls.Config{ServerName: "denied.example"}, "access denied"},
		{&tls.Config{ServerName: "private.example"}, "access denied"},
		{&tls.Config{InsecureSkipVerify: true}, "unrecognized name"},
		{&tls.Config{ServerName: "nowhere.example"}, "internal error"},
		{echClient(t, "denied.example", "example.com"), "unrecognized name"},
	} {
		if err := tls.Client(r.enterDoor(t, "tls"), tc.cfg).Handshake(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", tc.cfg.ServerName, err, tc.want)
		}
	}
	if diff := cmp.Diff([]string{publicIP + ":443"}, r.dials()); diff != "" {
		t.Error(diff)
	}
}

// TestHalfClose: either end of a tunnel may finish first.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	hello := clientHello(t, &tls.Config{ServerName: "example.com"})
	got := make(chan []byte, 1)
	go func() { // ends with its two connections
		for range 2 {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c) // until the client has finished
			io.WriteString(c, "bye")
			c.Close()
			got <- b
		}
	}()
	r := newRig(t, hi, nil)
	r.tls = ln.Addr().String()
	payload := bytes.Repeat([]byte("0123456789"), 100_000)
	for _, entrance := range []string{"egress", "tls"} {
		c := r.enterDoor(t, entrance)
		if entrance == "egress" {
			if status := connect(c, "example.com"); status != 200 {
				t.Fatal(status)
			}
		}
		c.Write(hello[:10])
		c.Write(append(bytes.Clone(hello[10:]), payload...))
		if err := c.(*net.UnixConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); err != nil || string(b) != "bye" {
			t.Errorf("%s: %q %v", entrance, b, err)
		}
		if b := <-got; !bytes.Equal(b, append(bytes.Clone(hello), payload...)) {
			t.Errorf("%s: %d bytes arrived", entrance, len(b))
		}
	}
}
