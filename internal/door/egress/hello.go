package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// TLS extensions that hide the server's name.
const (
	extECH  = 0xfe0d // encrypted ClientHello, RFC 9849
	extESNI = 0xffce // its forerunner
)

// TLS alerts, RFC 8446, section 6.2.
const (
	alertUnexpectedMessage = 10
	alertAccessDenied      = 49
	alertInternalError     = 80
	alertUnrecognizedName  = 112
)

// hello is what a TLS client says first.
type hello struct {
	name   string // server name, normalised; empty: none
	hidden bool   // there is another one, encrypted
	raw    []byte // all that was read, to be sent on
}

var errSeen = errors.New("seen")

// readHello reads up to the end of a ClientHello, and maybe more. It is parsed
// by crypto/tls, as by the server of a handshake that goes no further.
// Code: EGRESS_NAME_REFUSED; a deadline's error is given as it is.
func readHello(ctx context.Context, r io.Reader) (hello, error) {
	var h hello
	var got *tls.ClientHelloInfo
	rec := &recorder{r: r}
	err := tls.Server(rec, &tls.Config{
		MinVersion: tls.VersionTLS10, // nothing is negotiated here
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			got = info
			return nil, errSeen
		},
	}).HandshakeContext(ctx)
	h.raw = rec.seen.Bytes()
	if got == nil {
		if timedOut(rec.failed) {
			return h, rec.failed
		}
		return h, fault.Wrap(err, fault.EgressNameRefused, "The connection does not begin with a TLS ClientHello.")
	}
	h.hidden = slices.Contains(got.Extensions, extECH) || slices.Contains(got.Extensions, extESNI)
	if got.ServerName != "" {
		name, err := Host(got.ServerName)
		if err != nil {
			return h, fault.Wrap(err, fault.EgressNameRefused, "The server name in the ClientHello is not a host name.")
		}
		h.name = name
	}
	return h, nil
}

// alert is a fatal TLS alert in the clear, which clients print.
func alert(description byte) []byte { return []byte{21, 3, 1, 0, 2, 2, description} }

// recorder is the connection of a handshake that is only listened to.
type recorder struct {
	r      io.Reader
	seen   bytes.Buffer
	failed error
}

func (c *recorder) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.seen.Write(p[:n])
	if err != nil {
		c.failed = err
	}
	return n, err
}

func (c *recorder) Write(p []byte) (int, error)      { return len(p), nil } // the alert is ours to send
func (c *recorder) Close() error                     { return nil }
func (c *recorder) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *recorder) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *recorder) SetDeadline(time.Time) error      { return nil }
func (c *recorder) SetReadDeadline(time.Time) error  { return nil }
func (c *recorder) SetWriteDeadline(time.Time) error { return nil }
