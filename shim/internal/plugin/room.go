package plugin

import (
	"context"
	"slices"
	"sync"
)

// room is back-pressure: it bounds how many members are between the door of the scheduling queue and
// the API server's answer. Permit starts a clock (the service's bind_s), and scheduling is faster than a
// loaded API server binds: of thousands of pods that come at once the last would miss it, past the
// commit, and halve their gangs. So gangs wait at the door, in order, with nothing begun.
type room struct {
	mu    sync.Mutex
	size  int
	left  int // below zero at times: a Binding comes in whether there is room or not
	queue []*entrant
}

type entrant struct {
	members int
	in      chan struct{}
}

func newRoom(size int) *room { return &room{size: size, left: size} }

// take waits for its turn and room for so many members; a gang of more than fit waits until it is
// alone. The caller gives the room back. False: the context ended first.
func (r *room) take(ctx context.Context, members int) (leave func(), ok bool) {
	e := &entrant{members: min(members, r.size), in: make(chan struct{})}
	r.mu.Lock()
	r.queue = append(r.queue, e)
	r.admit()
	r.mu.Unlock()
	leave = func() { r.add(-e.members) }
	select {
	case <-e.in:
		return leave, true
	case <-ctx.Done():
	}
	r.mu.Lock()
	at := slices.Index(r.queue, e)
	if at >= 0 {
		r.queue = slices.Delete(r.queue, at, at+1)
		r.admit() // those behind it may fit
	}
	r.mu.Unlock()
	if at < 0 {
		leave() // let in at the same moment
	}
	return nil, false
}

// add lets members in without waiting, or, below zero, out.
func (r *room) add(members int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left -= members
	r.admit()
}

func (r *room) admit() {
	for len(r.queue) > 0 && r.queue[0].members <= r.left {
		r.left -= r.queue[0].members
		close(r.queue[0].in)
		r.queue = r.queue[1:]
	}
}
