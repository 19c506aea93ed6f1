package plain

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/hearthd/hearth/internal/delivery/forge"
	"github.com/hearthd/hearth/internal/delivery/gitwire"
	"github.com/hearthd/hearth/internal/fault"
)

const userAgent = "git/2.0 (hearth)"

// maxWords bounds what is told of a remote's text, in bytes.
const maxWords = 500

// refs reads the refs with these prefixes (hosts without protocol version 2 give all).
func (f *Forge) refs(ctx context.Context, r forge.Remote, c forge.Credential, prefixes []string) (*gitwire.Advertisement, error) {
	const service = "git-upload-pack"
	a, err := f.advertisement(ctx, r, c, service, "version=2")
	if err != nil || a.Version != 2 {
		return a, err
	}
	body := a.AppendLsRefs(nil, prefixes...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL+"/"+service, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request for refs: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-"+service+"-request")
	req.Header.Set("Accept", "application/x-"+service+"-result")
	req.Header.Set("Git-Protocol", "version=2")
	resp, err := f.do(req, r, c)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := a.ReadLsRefs(resp.Body); err != nil {
		return nil, readError(r, err)
	}
	return a, nil
}

func (f *Forge) advertisement(ctx context.Context, r forge.Remote, c forge.Credential, service, protocol string) (*gitwire.Advertisement, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+"/info/refs?service="+service, nil)
	if err != nil {
		return nil, fmt.Errorf("make request for refs: %w", err)
	}
	if protocol != "" {
		req.Header.Set("Git-Protocol", protocol)
	}
	resp, err := f.do(req, r, c)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	want := "application/x-" + service + "-advertisement"
	if t, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); t != want {
		return nil, fault.New(fault.RepositoryUnreachable, "%s answers, but not as a git repository.", r.URL)
	}
	a, err := gitwire.ReadAdvertisement(resp.Body, service)
	if err != nil {
		return nil, readError(r, err)
	}
	return a, nil
}

// do sends the request with the login and accepts only 200.
func (f *Forge) do(req *http.Request, r forge.Remote, c forge.Credential) (*http.Response, error) {
	req.Header.Set("User-Agent", userAgent)
	if !c.IsZero() {
		req.SetBasicAuth(c.Username, c.Password)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, dialError(r, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, statusError(resp, r, c)
}

func readError(r forge.Remote, err error) error {
	if text, ok := gitwire.AsRemote(err); ok {
		return fault.Wrap(err, fault.RepositoryUnreachable, "%s says: %s", r.URL, forge.OneLine(text, maxWords))
	}
	if errors.Is(err, gitwire.ErrFormat) {
		return fault.Wrap(err, fault.RepositoryUnreachable, "%s answers, but not as a git repository.", r.URL)
	}
	if errors.Is(err, gitwire.ErrTooLong) {
		return fault.Wrap(err, fault.RepositoryUnreachable, "%s has more refs than are read (%d MiB).", r.URL, gitwire.MaxAdvertisement>>20)
	}
	return fault.Wrap(err, fault.ForgeUnavailable, "The answer of %s broke off.", r.Host)
}

func dialError(r forge.Remote, err error) error {
	var (
		dns     *net.DNSError
		cert    *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		record  tls.RecordHeaderError
		timeout interface{ Timeout() bool }
	)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("ask %s: %w", r.Host, err)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fault.Wrap(err, fault.RepositoryUnreachable, "There is no host named %s.", dns.Name)
	case errors.As(err, &cert), errors.As(err, &unknown):
		return fault.Wrap(err, fault.RepositoryUnreachable, "The certificate of %s cannot be trusted: %s.", r.Host, certProblem(err))
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fault.Wrap(err, fault.RepositoryUnreachable, "%s does not speak TLS there. Check the URL's scheme and port.", r.Host)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fault.Wrap(err, fault.ForgeUnavailable, "%s did not answer in time.", r.Host)
	}
	return fault.Wrap(err, fault.ForgeUnavailable, "%s cannot be reached: %s.", r.Host, lastError(err))
}

func certProblem(err error) string {
	var (
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &name):
		return "it is for another name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "it has expired or is not valid yet"
	}
	return "nobody that this server trusts has signed it"
}

// lastError is the innermost error's text: the outer ones repeat the URL.
func lastError(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return forge.OneLine(err.Error(), maxWords)
		}
		err = inner
	}
}

func statusError(resp *http.Response, r forge.Remote, c forge.Credential) error {
	said := ""
	if t, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); t == "text/plain" {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 2048)) // decoration: what can be read of it is enough
		if s := forge.OneLine(string(b), maxWords); s != "" {
			said = " It says: " + s
		}
	}
	code := resp.StatusCode
	switch {
	case code == http.StatusUnauthorized && c.IsZero():
		return refused(code, "%s asks for a login (401) and the server has none for it.%s", r.URL, said)
	case code == http.StatusUnauthorized:
		return refused(code, "%s does not accept the server's login (401).%s", r.URL, said)
	case code == http.StatusForbidden:
		return refused(code, "%s forbids it (403).%s", r.URL, said)
	case code == http.StatusNotFound || code == http.StatusGone:
		return refused(code, "%s is not found (%d): it is not there, or the server's login may not see it.%s", r.URL, code, said)
	case code >= 300 && code < 400:
		if to := moved(resp, r); to != "" {
			return refused(code, "%s has moved to %s. Use that URL.", r.URL, to)
		}
		return refused(code, "%s redirects elsewhere (%d); that is not followed.", r.URL, code)
	case code == http.StatusTooManyRequests || code >= 500:
		e := fault.New(fault.ForgeUnavailable, "%s cannot serve now (%d).%s", r.Host, code, said).With("status", code)
		if after := resp.Header.Get("Retry-After"); after != "" && len(after) < 40 {
			e = e.With("retryAfter", forge.OneLine(after, maxWords))
		}
		return e
	}
	return refused(code, "%s answers with status %d.%s", r.URL, code, said)
}

func refused(status int, format string, args ...any) error {
	return fault.New(fault.RepositoryUnreachable, format, args...).With("status", status)
}

// moved is the repository's URL behind a redirect of its info/refs.
func moved(resp *http.Response, r forge.Remote) string {
	to, err := resp.Location()
	if err != nil || to.User != nil {
		return ""
	}
	p, ok := strings.CutSuffix(to.Path, "/info/refs")
	if !ok {
		return ""
	}
	to = &url.URL{Scheme: to.Scheme, Host: to.Host, Path: p}
	if m, err := forge.ParseRemote(to.String(), false); err == nil && m.URL != r.URL {
		return m.URL
	}
	return ""
}

// notWritable turns what was seen when asking to push into what it means.
func notWritable(r forge.Remote, c forge.Credential, cause error) error {
	status, _ := fault.From(cause).Details["status"].(int)
	seen := fault.From(cause).Sentence()
	switch {
	case status == http.StatusUnauthorized && c.IsZero():
		seen = fmt.Sprintf("%s can be read, but to write it a login is needed (401) and the server has none.", r.URL)
	case status == http.StatusUnauthorized:
		seen = fmt.Sprintf("%s can be read, but the server's login is not accepted for writing (401).", r.URL)
	case status == http.StatusForbidden && c.IsZero():
		seen = fmt.Sprintf("%s can be read, but not written without a login (403), and the server has none.%s", r.URL, said(seen))
	case status == http.StatusForbidden:
		seen = fmt.Sprintf("%s can be read, but the server's login may not write it (403).%s", r.URL, said(seen))
	case status == http.StatusNotFound:
		seen = fmt.Sprintf("%s can be read, but offers no way to push (404).", r.URL)
	}
	e := fault.Wrap(cause, fault.RepositoryNotWritable, "%s", seen)
	if status != 0 {
		e = e.With("status", status)
	}
	return e
}

// said is the host's own text in a sentence of [statusError].
func said(sentence string) string {
	if i := strings.Index(sentence, " It says: "); i >= 0 {
		return sentence[i:]
	}
	return ""
}
