package plugin

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const pollInterval = 20 * time.Millisecond

// admission limits how many members are in flight: between PreEnqueue and the API server's answer to their Binding.
//
// Permit starts a clock (the service's bind_s), and kube-scheduler schedules faster than a loaded API server binds.
// Without a limit, the last of thousands of pods that come at once would miss the deadline after Permit. Their gangs
// would be partially bound. So gangs wait in order, before anything is reserved for them.
type admission struct {
	mu    sync.Mutex
	size  int
	left  int // can be below zero: a Binding counts even if the limit is reached
	queue []*waiter
}

// waiter is a gang that waits for admission.
type waiter struct {
	members int
	in      chan struct{}
}

func newAdmission(size int) *admission { return &admission{size: size, left: size} }

// take waits until it is this gang's turn and its members fit under the limit. A gang larger than the limit waits
// until it is alone. The caller must call leave. ok is false if the context ended first.
func (r *admission) take(ctx context.Context, members int) (leave func(), ok bool) {
	e := &waiter{members: min(members, r.size), in: make(chan struct{})}
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
		r.admit() // gangs behind it may fit
	}
	r.mu.Unlock()
	if at < 0 {
		leave() // admitted at the same moment
	}
	return nil, false
}

// idle returns when no member is in flight, and at the latest after this time.
func (r *admission) idle(ctx context.Context, atMost time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.left == r.size && len(r.queue) == 0, nil
	})
}

// add counts members as in flight without waiting. A negative number removes members.
func (r *admission) add(members int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left -= members
	r.admit()
}

func (r *admission) admit() {
	for len(r.queue) > 0 && r.queue[0].members <= r.left {
		r.left -= r.queue[0].members
		close(r.queue[0].in)
		r.queue = r.queue[1:]
	}
}
