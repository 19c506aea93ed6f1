package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/operation/rest/resttest"
	"github.com/hearthd/hearth/internal/uistream"
)

// BenchmarkLargestTurn tells how much memory the server takes to hand out a turn of
// 64 MiB, the largest that is kept: of text in parts of 32 KiB, and of tools' outputs of 1 MiB.
func BenchmarkLargestTurn(b *testing.B) {
	for _, kind := range []string{"text", "tools"} {
		w := resttest.New(b)
		id := w.Create("x")
		w.Begin(id)
		if kind == "text" {
			w.Say(id, uistream.BlockStart{Kind: uistream.Text, ID: "t"}.Part().Raw)
			for range 60 {
				var parts []json.RawMessage
				for range 32 {
					parts = append(parts, uistream.BlockDelta{Kind: uistream.Text, ID: "t", Delta: strings.Repeat("x", 32<<10)}.Part().Raw)
				}
				w.Say(id, parts...)
			}
		} else {
			for i := range 60 {
				call := fmt.Sprint(i)
				w.Say(id, uistream.ToolInputAvailable{ToolCallID: call, ToolName: "n", Dynamic: true}.Part().Raw,
					uistream.ToolOutputAvailable{ToolCallID: call, Dynamic: true, Output: uistream.ValueOf(strings.Repeat("x", 1<<20-1000))}.Part().Raw)
			}
		}
		w.End(id)
		for _, path := range []string{"/messages", "/export", "/export?format=markdown"} {
			b.Run(kind+path, func(b *testing.B) {
				for b.Loop() {
					runtime.GC()
					var before runtime.MemStats
					runtime.ReadMemStats(&before)
					var most atomic.Uint64
					ctx, cancel := context.WithCancel(b.Context())
					done := make(chan struct{})
					go func() {
						defer close(done)
						every := time.NewTicker(5 * time.Millisecond)
						defer every.Stop()
						for ; ctx.Err() == nil; <-every.C {
							var m runtime.MemStats
							runtime.ReadMemStats(&m)
							most.Store(max(most.Load(), m.HeapInuse))
						}
					}()
					n := read(b, w, "/v1/agent-sessions/"+string(id)+path)
					cancel()
					<-done
					b.ReportMetric(float64(most.Load()-before.HeapInuse)/(1<<20), "peak-MiB")
					b.ReportMetric(float64(n)/(1<<20), "answer-MiB")
				}
			})
		}
	}
}

// read fetches an answer, holds none of it, and returns its size.
func read(b *testing.B, w *resttest.World, path string) int64 {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, w.URL+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+resttest.Token)
	res, err := web.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		b.Fatalf("%d: %v", res.StatusCode, err)
	}
	return n
}
