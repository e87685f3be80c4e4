package fair

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const pollInterval = 20 * time.Millisecond

// Room limits how many members are in at a time. Gangs wait in the order in which they came. Namespaces take
// turns, and none counts for more than its share of the size. So others can go on, however many gangs of one
// namespace are in and however large they are.
type Room struct {
	mu          sync.Mutex
	size, share int
	used        int                // of the size
	of          map[string]*tenant // namespaces with gangs that are in or wait
	turns       []string           // namespaces with gangs that wait, the next one first
}

// tenant is what one namespace has in a room.
type tenant struct {
	in    int // members
	queue []*Ticket
}

// Ticket stands for a gang that waits or is in.
type Ticket struct {
	namespace string
	members   int // those that have not left
	admitted  chan struct{}
	empty     chan struct{}
}

// Empty returns a channel that is closed when the last member has left.
func (t *Ticket) Empty() <-chan struct{} { return t.empty }

// NewRoom returns an empty room. A share as large as the size is none: then namespaces only take turns.
func NewRoom(size, share int) *Room {
	return &Room{size: size, share: share, of: map[string]*tenant{}}
}

// Take waits until it is this gang's turn and its members fit. A gang larger than the share waits until its namespace
// has no other gang in. The members must leave later. ok is false if the context ended first.
func (r *Room) Take(ctx context.Context, namespace string, members int) (t *Ticket, ok bool) {
	t = &Ticket{namespace: namespace, members: members, admitted: make(chan struct{}), empty: make(chan struct{})}
	r.mu.Lock()
	r.enter(t)
	r.mu.Unlock()
	select {
	case <-t.admitted:
		return t, true
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-t.admitted: // at the same moment
		r.release(t, t.members)
	default:
		r.withdraw(t)
	}
	return nil, false
}

// Leave records that one member has left. More than have come in have no effect.
func (r *Room) Leave(t *Ticket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release(t, min(1, t.members))
}

// LeaveAll records that all members have left.
func (r *Room) LeaveAll(t *Ticket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release(t, t.members)
}

// Members returns how many members are in.
func (r *Room) Members() (in int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.of {
		in += of.in
	}
	return in
}

// Idle returns when no member is in or waits, and at the latest after this time.
func (r *Room) Idle(ctx context.Context, atMost time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.of) == 0, nil
	})
}

// The caller of the following functions holds the lock.

func (r *Room) enter(t *Ticket) {
	of := r.of[t.namespace]
	if of == nil {
		of = &tenant{}
		r.of[t.namespace] = of
	}
	if len(of.queue) == 0 {
		r.turns = append(r.turns, t.namespace)
	}
	of.queue = append(of.queue, t)
	r.admit()
}

// admit lets gangs in. It passes over namespaces that have their share. It stops at a gang for which others must leave
// first, so that smaller ones do not overtake it for ever.
func (r *Room) admit() {
	for passed := 0; passed < len(r.turns); {
		namespace := r.turns[0]
		of := r.of[namespace]
		t := of.queue[0]
		if of.in > 0 && of.in+t.members > r.share {
			r.turns = append(r.turns[1:], namespace)
			passed++
			continue
		}
		more := min(of.in+t.members, r.share) - min(of.in, r.share)
		if r.used+more > r.size {
			return
		}
		r.used += more
		of.in += t.members
		close(t.admitted)
		of.queue, r.turns, passed = of.queue[1:], r.turns[1:], 0
		if len(of.queue) > 0 {
			r.turns = append(r.turns, namespace)
		}
	}
}

func (r *Room) release(t *Ticket, members int) {
	if members == 0 {
		return
	}
	of := r.of[t.namespace]
	r.used -= min(of.in, r.share) - min(of.in-members, r.share)
	of.in -= members
	if t.members -= members; t.members == 0 {
		close(t.empty)
	}
	r.tidy(t.namespace)
	r.admit()
}

// withdraw removes a gang that waits.
func (r *Room) withdraw(t *Ticket) {
	of := r.of[t.namespace]
	of.queue = slices.DeleteFunc(of.queue, func(other *Ticket) bool { return other == t })
	if len(of.queue) == 0 {
		r.turns = slices.DeleteFunc(r.turns, func(namespace string) bool { return namespace == t.namespace })
	}
	r.tidy(t.namespace)
	r.admit() // gangs behind it may fit
}

func (r *Room) tidy(namespace string) {
	if of := r.of[namespace]; of.in == 0 && len(of.queue) == 0 {
		delete(r.of, namespace)
	}
}
