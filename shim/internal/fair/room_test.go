package fair

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// enter calls take in a goroutine, and returns once the gang is in or waits.
func enter(t *testing.T, ctx context.Context, r *Room, namespace string, members int) chan *Ticket {
	t.Helper()
	in := make(chan *Ticket, 1)
	go func() {
		if ticket, ok := r.Take(ctx, namespace, members); ok {
			in <- ticket
		}
	}()
	synctest.Wait()
	return in
}

// room is an admission whose goroutines synctest can wait for.
func room(t *testing.T, size, share int, test func(*testing.T, *Room)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(size, share)
		test(t, r)
		synctest.Wait()
		if r.usedSize != 0 || len(r.byNamespace) != 0 || len(r.turns) != 0 {
			t.Errorf("left in an empty room: %d used, %v, %v", r.usedSize, r.byNamespace, r.turns)
		}
	})
}

func TestRoomLetsInWhatFitsInOrder(t *testing.T) {
	room(t, 10, 10, func(t *testing.T, r *Room) {
		six := <-enter(t, t.Context(), r, "a", 6)
		eight := enter(t, t.Context(), r, "b", 8)
		two := enter(t, t.Context(), r, "c", 2) // would fit, but eight came first
		if len(eight)+len(two) != 0 {
			t.Fatal("let in behind six of ten, or before its turn")
		}
		r.LeaveAll(six)
		synctest.Wait()
		if len(eight) != 1 || len(two) != 1 {
			t.Fatal("eight and two of ten are not let in")
		}
		r.LeaveAll(<-eight)
		r.LeaveAll(<-two)
	})
}

func TestNamespacesTakeTurnsAndHaveAShareAtMost(t *testing.T) {
	room(t, 10, 5, func(t *testing.T, r *Room) {
		var crowd []chan *Ticket
		for range 10 {
			crowd = append(crowd, enter(t, t.Context(), r, "crowd", 1))
		}
		for i, in := range crowd {
			if got := len(in) == 1; got != (i < 5) {
				t.Errorf("the crowd's gang %d is in: %v", i, got)
			}
		}
		tickets := []chan *Ticket{
			enter(t, t.Context(), r, "b", 3), enter(t, t.Context(), r, "b", 3), enter(t, t.Context(), r, "c", 2),
		}
		if len(tickets[0])+len(tickets[1])+len(tickets[2]) != 2 || len(tickets[1]) != 0 {
			t.Error("not one gang of each other namespace is in beside the crowd")
		}
		for _, in := range append(crowd, tickets...) {
			ticket := <-in
			for range ticket.members {
				r.Leave(ticket)
			}
			r.Leave(ticket) // more than came in
			synctest.Wait()
		}
	})
}

func TestAGangLargerThanTheShareLeavesRoomForOthers(t *testing.T) {
	room(t, 10, 5, func(t *testing.T, r *Room) {
		small := <-enter(t, t.Context(), r, "a", 1)
		large := enter(t, t.Context(), r, "a", 2048)
		if len(large) != 0 {
			t.Fatal("let in beside another gang of its namespace")
		}
		r.Leave(small)
		ticket := <-large
		next := enter(t, t.Context(), r, "a", 1)
		second := <-enter(t, t.Context(), r, "b", 5)
		for range 2043 {
			r.Leave(ticket)
		}
		synctest.Wait()
		if len(next) != 0 || r.usedSize != 10 {
			t.Errorf("%d of 10 used by five of the large one and five others", r.usedSize)
		}
		r.Leave(ticket)
		r.LeaveAll(<-next)
		r.LeaveAll(second)
		r.LeaveAll(ticket)
		<-ticket.Empty()
	})
}

func TestRoomForgetsWhoGoesAway(t *testing.T) {
	room(t, 10, 10, func(t *testing.T, r *Room) {
		ten := <-enter(t, t.Context(), r, "a", 10)
		ctx, cancel := context.WithCancel(t.Context())
		withdrawn := enter(t, ctx, r, "a", 10)
		behind := enter(t, t.Context(), r, "b", 1)
		cancel()
		synctest.Wait()
		r.LeaveAll(ten)
		r.LeaveAll(<-behind)
		if len(withdrawn) != 0 {
			t.Error("let in though its context had ended")
		}
	})
}

// A random walk: usedSize is the sum over the namespaces, each up to its share, and a gang that fits does not wait.
func TestRoomCountsWhatIsIn(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	room(t, 20, 8, func(t *testing.T, r *Room) {
		var in []*Ticket
		var waiting []chan *Ticket
		collect := func() {
			synctest.Wait()
			waiting = slices.DeleteFunc(waiting, func(channel chan *Ticket) bool {
				if len(channel) == 0 {
					return false
				}
				in = append(in, <-channel)
				return true
			})
		}
		for range 5000 {
			if len(in) > 0 && random.IntN(2) == 0 {
				at := random.IntN(len(in))
				if r.Leave(in[at]); in[at].members == 0 {
					in = slices.Delete(in, at, at+1)
				}
			} else if len(waiting) < 30 {
				waiting = append(waiting, enter(t, t.Context(), r, fmt.Sprint("ns", random.IntN(5)), 1+random.IntN(12)))
			}
			collect()
			total := 0
			for name, of := range r.byNamespace {
				total += min(of.memberCount, r.share)
				if len(of.queue) > 0 != slices.Contains(r.turns, name) {
					t.Fatalf("%s waits and has no turn, or the reverse", name)
				}
			}
			if total != r.usedSize || total > r.size {
				t.Fatalf("%d used, counted as %d of %d", total, r.usedSize, r.size)
			}
			if len(r.turns) > 0 && len(in) == 0 {
				t.Fatal("gangs wait, and none is in")
			}
		}
		for len(in) > 0 {
			for _, ticket := range in {
				r.LeaveAll(ticket)
			}
			in = nil
			collect()
		}
		if len(waiting) > 0 {
			t.Errorf("%d were never let in", len(waiting))
		}
	})
}

// Refused gangs wait until the members in flight have left, but not for ever.
func TestIdleReturnsWhenTheLastMemberHasLeft(t *testing.T) {
	room(t, 10, 10, func(t *testing.T, r *Room) {
		two := <-enter(t, t.Context(), r, "a", 2)
		began := time.Now()
		time.AfterFunc(time.Minute, func() { r.LeaveAll(two) })
		if r.WaitUntilIdle(t.Context(), time.Hour); time.Since(began) < time.Minute || time.Since(began) > 2*time.Minute {
			t.Errorf("idle after %v, the last member left after a minute", time.Since(began))
		}
		ticket := <-enter(t, t.Context(), r, "a", 1)
		began = time.Now()
		if r.WaitUntilIdle(t.Context(), time.Minute); time.Since(began) != time.Minute {
			t.Errorf("waited %v for a minute at most", time.Since(began))
		}
		r.LeaveAll(ticket)
	})
}
