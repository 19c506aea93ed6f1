package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/hearthd/hearth/internal/door"
	"github.com/hearthd/hearth/internal/door/model"
	"github.com/hearthd/hearth/internal/driverapi"
	"github.com/hearthd/hearth/internal/secret"
	"github.com/hearthd/hearth/internal/testkit/scriptedmodel"
)

// modelDoor measures what the model door adds to an exchange: the same request,
// through a doors socket and the door, and to the model directly.
func modelDoor(ctx context.Context, b *bench) (out []metric, err error) {
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	upstream, stop, err := listen(scriptedmodel.New(scriptedmodel.Options{LogSize: 10}))
	if err != nil {
		return nil, err
	}
	defer stop()
	base, err := url.Parse(upstream)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	d := model.New(model.Config{Routes: map[model.Dialect]model.Route{model.Anthropic: {
		Name: "anthropic", BaseURL: base, Auth: model.AuthAPIKey, Key: func(context.Context) (secret.Secret, error) { return secret.New("sk-bench"), nil },
	}}})
	socket := filepath.Join(dir, "doors.sock")
	set, err := door.Listen(socket, log)
	if err != nil {
		return nil, err
	}
	set.Handle(driverapi.DoorModel, door.HTTP(d, log))
	serving, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- set.Run(serving) }() // waited for below
	defer func() { cancel(); err = errors.Join(err, <-done) }()

	through := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		if _, err := c.Write([]byte(driverapi.DoorModel + "\n")); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	}}}
	direct := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	defer through.CloseIdleConnections()
	defer direct.CloseIdleConnections()
	run := func(c *http.Client, to string) side {
		return func(ctx context.Context, _ int) (sample, error) {
			s := sample{}
			for range b.n {
				v, err := timed(func() error { return exchange(ctx, c, to) })
				if err != nil {
					return nil, err
				}
				s.add("exchange", v)
			}
			return s, nil
		}
	}
	s, f, err := b.alternate(ctx, run(through, "http://door/anthropic"), run(direct, upstream))
	if err != nil {
		return nil, err
	}
	line := func(q float64) metric {
		return metric{
			What: "streamed Messages exchange of 8 kB, to its end", Unit: unitMS, Quantile: q, Measured: s["exchange"], Floor: f["exchange"],
			FloorIs: "the same request to the scripted model directly", Compare: ofDifference,
		}
	}
	out = []metric{line(median), line(p99)}
	out[0].Target, out[0].TargetOf = 1, ofDifference
	return out, nil
}

// exchange asks the model as an agent does and reads the stream to its end.
func exchange(ctx context.Context, c *http.Client, base string) error {
	body := `{"model":"claude-bench","max_tokens":1024,"stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("measure ", 1000) + `"}]}`
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/messages", strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Anthropic-Version", "2023-06-01")
	r.Header.Set("X-Api-Key", "sk-placeholder")
	res, err := c.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	if res.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("the model answered %s", res.Status))
	}
	return err
}
