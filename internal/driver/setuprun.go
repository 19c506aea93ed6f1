package driver

import (
	"context"
	"sync"

	"github.com/hearthd/hearth/internal/driverapi"
)

// setupRun is one setup, which any number of calls may watch: it goes on when
// the connection that began it is cut.
type setupRun struct {
	mu      sync.Mutex
	events  []driverapi.SetupEvent
	done    bool
	failed  bool
	told    bool // somebody was told how it went
	changed chan struct{}
}

func (r *setupRun) add(e driverapi.SetupEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	r.done = e.Done
	r.failed = e.Failure != nil
	close(r.changed)
	r.changed = make(chan struct{})
}

// watch gives every event to send, which may have to wait for its reader.
func (r *setupRun) watch(ctx context.Context, send func(driverapi.SetupEvent) error) error {
	for i := 0; ; {
		r.mu.Lock()
		events, done, changed := r.events[i:], r.done, r.changed
		r.mu.Unlock()
		for _, e := range events {
			if err := send(e); err != nil {
				return err
			}
		}
		if i += len(events); done {
			r.mu.Lock()
			r.told = true
			r.mu.Unlock()
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// startSetup begins a setup or joins the one at work. One that has failed is begun anew.
func (d *Driver) startSetup(ctx context.Context, req driverapi.SetupRequest) *setupRun {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.setup; r != nil {
		r.mu.Lock()
		again := r.done && r.failed && r.told
		r.mu.Unlock()
		if !again {
			return r
		}
	}
	r := &setupRun{changed: make(chan struct{})}
	d.setup = r
	ctx, cancel := d.outlive(ctx)
	d.wg.Go(func() {
		defer cancel()
		r.add(d.tree.Setup(ctx, req, r.add))
	})
	return r
}
