package fair

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const pollInterval = 20 * time.Millisecond

// Room limits how many members are in the room at a time. Gangs wait in the order of their arrival. Namespaces take
// turns, and each counts for at most its share of the size. So one namespace cannot block the others, whatever the number
// and the size of its gangs.
type Room struct {
	mu          sync.Mutex
	size, share int
	usedSize    int                // members in the room, at most its share for each namespace
	byNamespace map[string]*tenant // namespaces with gangs that are in the room or wait
	turns       []string           // namespaces with gangs that wait, the next one first
}

// tenant counts the members of one namespace that are in the room, and lists its gangs that wait.
type tenant struct {
	memberCount int
	queue       []*Ticket
}

// Ticket represents a gang that waits or is in the room.
type Ticket struct {
	namespace string
	members   int // members that have not left
	admitted  chan struct{}
	empty     chan struct{}
}

// Empty returns a channel that is closed when the last member has left.
func (t *Ticket) Empty() <-chan struct{} { return t.empty }

// NewRoom returns an empty room. If the share is as large as the size, namespaces take turns but have no limit.
func NewRoom(size, share int) *Room {
	return &Room{size: size, share: share, byNamespace: map[string]*tenant{}}
}

// Take waits until it is this gang's turn and its members fit. A gang larger than the share waits until no other gang of
// its namespace is in the room. The members must leave later. ok is false if the context ended first.
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

// Leave records that one member has left. A call after the last member has left has no effect.
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

// MemberCount returns how many members are in the room.
func (r *Room) MemberCount() (count int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, tenant := range r.byNamespace {
		count += tenant.memberCount
	}
	return count
}

// WaitUntilIdle waits until no member is in the room or waits, but not longer than atMost.
func (r *Room) WaitUntilIdle(ctx context.Context, atMost time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.byNamespace) == 0, nil
	})
}

// The caller of each function below holds the lock.

// enter adds a gang to the queue of its namespace, and lets in the gangs that fit.
func (r *Room) enter(t *Ticket) {
	entry := r.byNamespace[t.namespace]
	if entry == nil {
		entry = &tenant{}
		r.byNamespace[t.namespace] = entry
	}
	if len(entry.queue) == 0 {
		r.turns = append(r.turns, t.namespace)
	}
	entry.queue = append(entry.queue, t)
	r.admit()
}

// admit lets gangs in. It skips namespaces that have their share. It stops at a gang for which other members must leave
// first. Otherwise smaller gangs could overtake that gang for ever.
func (r *Room) admit() {
	for passed := 0; passed < len(r.turns); {
		namespace := r.turns[0]
		entry := r.byNamespace[namespace]
		ticket := entry.queue[0]
		if entry.memberCount > 0 && entry.memberCount+ticket.members > r.share {
			r.turns = append(r.turns[1:], namespace)
			passed++
			continue
		}
		growth := min(entry.memberCount+ticket.members, r.share) - min(entry.memberCount, r.share)
		if r.usedSize+growth > r.size {
			return
		}
		r.usedSize += growth
		entry.memberCount += ticket.members
		close(ticket.admitted)
		entry.queue, r.turns, passed = entry.queue[1:], r.turns[1:], 0
		if len(entry.queue) > 0 {
			r.turns = append(r.turns, namespace)
		}
	}
}

// release takes members of a gang out of the room.
func (r *Room) release(t *Ticket, members int) {
	if members == 0 {
		return
	}
	entry := r.byNamespace[t.namespace]
	r.usedSize -= min(entry.memberCount, r.share) - min(entry.memberCount-members, r.share)
	entry.memberCount -= members
	if t.members -= members; t.members == 0 {
		close(t.empty)
	}
	r.removeEmpty(t.namespace)
	r.admit()
}

// withdraw removes a gang that waits.
func (r *Room) withdraw(t *Ticket) {
	entry := r.byNamespace[t.namespace]
	entry.queue = slices.DeleteFunc(entry.queue, func(queued *Ticket) bool { return queued == t })
	if len(entry.queue) == 0 {
		r.turns = slices.DeleteFunc(r.turns, func(namespace string) bool { return namespace == t.namespace })
	}
	r.removeEmpty(t.namespace)
	r.admit() // gangs behind it may fit
}

// removeEmpty forgets a namespace without gangs that wait or are in the room.
func (r *Room) removeEmpty(namespace string) {
	if entry := r.byNamespace[namespace]; entry.memberCount == 0 && len(entry.queue) == 0 {
		delete(r.byNamespace, namespace)
	}
}
