package model

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/hearthd/hearth/internal/fault"
)

// sharedTransport keeps connections to the providers for all sessions of the
// process: keys go into requests, not into connections.
var sharedTransport = sync.OnceValue(func() http.RoundTripper { return NewTransport() })

// NewTransport makes a transport fit for model providers: long silences,
// many streams, nothing compressed by itself, the proxy of the environment.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   15 * time.Second,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   32,
		IdleConnTimeout:       90 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
	}
}

// unreachable says in words why there was no answer. It names no address.
func unreachable(err error) *fault.Error {
	var (
		dns     *net.DNSError
		cert    *tls.CertificateVerificationError
		record  tls.RecordHeaderError
		timeout interface{ Timeout() bool }
		why     string
	)
	switch {
	case errors.As(err, &dns):
		why = "Its name could not be resolved."
	case errors.As(err, &cert):
		why = "Its certificate is not trusted."
	case errors.As(err, &record):
		why = "It does not speak TLS; its address may have to begin with http."
	case errors.Is(err, syscall.ECONNREFUSED):
		why = "It refused the connection."
	case errors.As(err, &timeout) && timeout.Timeout():
		why = "It did not answer in time."
	default:
		why = "The connection failed before it answered."
	}
	return fault.Wrap(err, fault.ModelUnreachable, "The model provider could not be reached. %s", why)
}
