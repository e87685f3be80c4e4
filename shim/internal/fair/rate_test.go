package fair

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

// ten returns a rate of ten a second for each namespace, and twice as much for all.
func ten() *Rate { return NewRate(10, 100, rate.NewLimiter(20, 200)) }

// asks starts callers of one namespace, and returns a channel with the time that each of them waited.
func asks(ctx context.Context, s *Rate, namespace string, callers, count int) <-chan time.Duration {
	waited, began := make(chan time.Duration, callers), time.Now()
	for range callers {
		go func() {
			if s.Wait(ctx, namespace, count) {
				waited <- time.Since(began)
			}
		}()
	}
	return waited
}

func TestANamespaceWithThousandsDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ten()
		many := asks(t.Context(), s, "a", 4000, 1)
		time.Sleep(time.Minute) // all that "a" may have at once is used
		if got := len(many); got < 600 || got > 800 {
			t.Errorf("%d of a's went on in a minute, and its rate is 10 a second", got)
		}
		for i, gang := range []int{1, 4} {
			if took := <-asks(t.Context(), s, fmt.Sprint("b", i), 1, gang); took > time.Second {
				t.Errorf("another namespace waited %v", took)
			}
		}
		whole := asks(t.Context(), s, "c", 25, 4)
		time.Sleep(time.Second)
		if len(whole) != cap(whole) {
			t.Errorf("%d of %d turns of a third namespace went on in a second", len(whole), cap(whole))
		}
		time.Sleep(400 * time.Second)
		if len(many) != 4000 {
			t.Errorf("%d of 4000 went on", len(many))
		}
	})
}

// The API server has a limit of all namespaces, and they take turns at it.
func TestManyNamespacesTakeTurnsAtTheLimitOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewRate(10, 10, rate.NewLimiter(20, 20))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		total := func(of []<-chan time.Duration) (count int) {
			for _, waited := range of {
				count += len(waited)
			}
			return count
		}
		var waited []<-chan time.Duration
		for i := range 100 {
			waited = append(waited, asks(ctx, s, fmt.Sprint("ns", i), 10, 1))
		}
		time.Sleep(10 * time.Second)
		if got := total(waited); got > 220+1 {
			t.Errorf("%d went on in 10 s, at most 20 and 20 a second may", got)
		}
		for i, of := range waited {
			if len(of) == 0 {
				t.Errorf("namespace %d had no turn", i)
			}
		}
		if took := <-asks(ctx, s, "late", 1, 1); took > 100/20*time.Second+time.Second {
			t.Errorf("a late one waited %v: more than one turn of each", took)
		}
	})
}

func TestTheFairRateForgetsNamespacesThatAreWholeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ten()
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := asks(ctx, s, "gone", 5000, 1)
		for i := range 2_000 {
			s.Wait(t.Context(), fmt.Sprint("ns", i), 1)
		}
		if most := 2 * 100; len(s.byNamespace) > most {
			t.Errorf("%d namespaces are remembered, at most %d may be", len(s.byNamespace), most)
		}
		cancel()
		synctest.Wait()
		if len(cancelled) == cap(cancelled) || s.byNamespace["gone"].callers != 0 {
			t.Errorf("%d went on, %d wait, though the context has ended", len(cancelled), s.byNamespace["gone"].callers)
		}
		if took := <-asks(t.Context(), s, "gone", 1, 1); took > time.Second {
			t.Errorf("waited %v behind callers that are gone", took)
		}
		time.Sleep(time.Minute)
		s.mu.Lock()
		s.sweepAt = 0
		s.sweep()
		s.mu.Unlock()
		if len(s.byNamespace) != 0 {
			t.Errorf("%d namespaces are remembered after a minute without callers", len(s.byNamespace))
		}
	})
}
