package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	_ "modernc.org/sqlite" // the floor's database

	"github.com/hearthd/hearth/client"
)

// busySessions have a turn at work each, so that what is accepted waits in their
// queues and starts nothing.
const busySessions = 10

// streaming speaks ten times a second: what the agents' sandboxes take of the
// processors is not the question here.
const streaming = "@@slow 90000 100@@"

// acceptRepeat is a prompt's length in words; about 400 bytes.
const acceptRepeat = 50

// accept measures POST …/turns from the client: judged, written with FULL
// synchronisation, answered.
func accept(ctx context.Context, b *bench) ([]metric, error) {
	w, err := b.world(ctx, b.scripted)
	if err != nil {
		return nil, err
	}
	out, err := w.accept(ctx)
	return out, w.close(ctx, err)
}

func (w *world) accept(ctx context.Context) ([]metric, error) {
	if err := w.ready(ctx); err != nil {
		return nil, err
	}
	floor, err := w.b.newInsertFloor(w.dir)
	if err != nil {
		return nil, err
	}
	defer floor.close()
	ids := make([]string, busySessions)
	work := make([]string, busySessions)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i := range ids {
		g.Go(func() error {
			a, err := w.create(gctx, client.CreateInput{Prompt: "@@hang@@", FirstEventLimitSeconds: 3600, SilenceLimitSeconds: 3600})
			if err != nil {
				return err
			}
			ids[i], work[i] = a.Session.ID, a.Turn.ID
			return w.running(gctx, a.Session.ID, a.Turn.ID)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	one, oneFloor, err := w.b.alternate(ctx, w.acceptSide(ids, 1), floor.side(1))
	if err != nil {
		return nil, err
	}
	// From now on the ten speak and are watched.
	for i, id := range ids {
		if _, err := w.c.Cancel(ctx, id, work[i]); err != nil {
			return nil, fmt.Errorf("cancel: %w", err)
		}
		if _, err := w.turn(ctx, id, work[i], "canceled", func(t client.Turn) bool { return t.Ended() }); err != nil {
			return nil, err
		}
		a, err := w.c.Prompt(ctx, id, client.PromptInput{Prompt: streaming})
		if err != nil {
			return nil, fmt.Errorf("prompt: %w", err)
		}
		if err := w.running(ctx, id, a.Turn.ID); err != nil {
			return nil, err
		}
	}
	watch, stop := context.WithCancel(ctx)
	var viewers sync.WaitGroup
	defer viewers.Wait()
	defer stop()
	for _, id := range ids {
		viewers.Go(func() {
			_ = w.c.Stream(watch, id, client.StreamOptions{}, func(client.Event) error { return nil }) // ends with stop
		})
	}
	many, manyFloor, err := w.b.alternate(ctx, w.acceptSide(ids, 16), floor.side(16))
	if err != nil {
		return nil, err
	}
	const floorIs = "a bare HTTP handler that puts the same prompt into a table of one SQLite file, synchronous=FULL, one writing connection"
	line := func(what string, q float64, s, f map[string]series) metric {
		return metric{What: what, Unit: unitMS, Quantile: q, Measured: s["accept"], Floor: f["accept"], FloorIs: floorIs, Compare: ofDifference}
	}
	out := []metric{
		line("1 client", median, one, oneFloor), line("1 client", p99, one, oneFloor),
		line("16 clients, 10 sessions streaming", median, many, manyFloor), line("16 clients, 10 sessions streaming", p99, many, manyFloor),
	}
	deep := fmt.Sprintf("the queues grow to %d prompts a session within a round; they are emptied in between", min(queued, (w.b.n+busySessions-1)/busySessions))
	out[0].Note, out[2].Note = deep, deep
	out[1].Target, out[1].TargetOf = 10, ofMeasured
	out[3].Target, out[3].TargetOf = 25, ofMeasured
	return out, nil
}

// queued is how many prompts a session's queue takes in a round, below the limit of 32.
const queued = 30

// acceptSide posts n prompts in a round, from so many clients at a time, and
// empties the queues again.
func (w *world) acceptSide(ids []string, clients int) side {
	return func(ctx context.Context, _ int) (sample, error) {
		s := sample{}
		for left := w.b.n; left > 0; left -= queued * len(ids) {
			n := min(left, queued*len(ids))
			turns := make([]string, n)
			took, err := parallel(ctx, clients, n, func(ctx context.Context, i int) error {
				a, err := w.c.Prompt(ctx, ids[i%len(ids)], client.PromptInput{Prompt: prompt()})
				if err != nil {
					return fmt.Errorf("prompt: %w", err)
				}
				turns[i] = a.Turn.ID
				return nil
			})
			if err != nil {
				return nil, err
			}
			s.add("accept", took...)
			_, err = parallel(ctx, 4, n, func(ctx context.Context, i int) error {
				_, err := w.c.Cancel(ctx, ids[i%len(ids)], turns[i])
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("empty the queues: %w", err)
			}
		}
		return s, nil
	}
}

func prompt() string { return strings.Repeat("measure ", acceptRepeat) }

// parallel calls f for 0..n-1 from so many goroutines and returns what each took, ms.
func parallel(ctx context.Context, at, n int, f func(ctx context.Context, i int) error) ([]float64, error) {
	took := make([]float64, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(at)
	for i := range n {
		g.Go(func() (err error) {
			took[i], err = timed(func() error { return f(ctx, i) })
			return err
		})
	}
	return took, g.Wait()
}

// insertFloor is the least that accepting can be: HTTP and one synced row.
type insertFloor struct {
	n    int // inserts in a round
	db   *sql.DB
	url  string
	http *http.Client
	stop func()
}

func (b *bench) newInsertFloor(dir string) (*insertFloor, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "floor.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		return nil, fmt.Errorf("open the floor's database: %w", err)
	}
	db.SetMaxOpenConns(1)
	f := &insertFloor{n: b.n, db: db, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	_, err = db.ExecContext(context.Background(), "CREATE TABLE turns (id INTEGER PRIMARY KEY, prompt TEXT NOT NULL)")
	if err == nil {
		f.url, f.stop, err = listen(http.HandlerFunc(f.insert))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the floor: %w", err), db.Close())
	}
	return f, nil
}

func (f *insertFloor) insert(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err == nil {
		_, err = f.db.ExecContext(r.Context(), "INSERT INTO turns (prompt) VALUES (?)", string(body))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func (f *insertFloor) side(clients int) side {
	return func(ctx context.Context, _ int) (sample, error) {
		took, err := parallel(ctx, clients, f.n, func(ctx context.Context, _ int) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url, strings.NewReader(prompt()))
			if err != nil {
				return err
			}
			res, err := f.http.Do(r)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			_, err = io.Copy(io.Discard, res.Body) // so that the connection is used again
			if res.StatusCode != http.StatusCreated {
				err = errors.Join(err, fmt.Errorf("the floor answered %s", res.Status))
			}
			return err
		})
		return sample{"accept": took}, err
	}
}

func (f *insertFloor) close() {
	f.stop()
	f.http.CloseIdleConnections()
	_ = f.db.Close() // the file goes with the folder
}
