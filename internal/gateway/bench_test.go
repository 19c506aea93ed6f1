package gateway_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthd/hearth/internal/operation/rest/resttest"
)

// BenchmarkFanOut shows 5,000 parts of 200 bytes to 50 viewers over HTTP, the store on.
func BenchmarkFanOut(b *testing.B) {
	for range b.N {
		w := resttest.New(b)
		id := w.Create("one")
		w.Begin(id)
		var wg sync.WaitGroup
		counts := make([]int, 50)
		for i := range counts {
			res := openAs(b.Context(), b, w, resttest.Token, id, "", "")
			wg.Go(func() { counts[i] = len(read(res, 1<<30).events) })
		}
		words := make([]string, 48)
		for i := range words {
			words[i] = strings.Repeat("x", 150)
		}
		begun := time.Now()
		for i := range 100 {
			w.Say(id, resttest.Text(fmt.Sprint(i), words...)...)
		}
		w.End(id)
		wg.Wait()
		took := time.Since(begun)
		total := 0
		for _, n := range counts {
			total += n
		}
		if want := 50 * len(stored(w, id)); total != want {
			b.Fatalf("%d of %d events", total, want)
		}
		b.ReportMetric(float64(total)/took.Seconds(), "events/s")
	}
}
