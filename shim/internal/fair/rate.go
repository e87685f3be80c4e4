// Package fair has limits that namespaces share, so that no namespace can use up a limit and block the others.
package fair

import (
	"context"
	"maps"
	"sync"

	"golang.org/x/time/rate"
)

// Rate limits a rate for each namespace and for all namespaces together. In each namespace one caller at a time waits for
// the limits, and the common limit serves callers in the order of their arrival. So namespaces take turns: a namespace
// with thousands of callers delays another namespace by one caller.
type Rate struct {
	limit rate.Limit // of one namespace
	burst int
	all   *rate.Limiter

	mu          sync.Mutex
	byNamespace map[string]*namespaceRate
	sweepAt     int // size of the map at which entries are removed
}

// namespaceRate is the limit of one namespace. It is removed some time after its last call, when its burst is full again.
type namespaceRate struct {
	limiter *rate.Limiter
	turn    chan struct{} // held by the caller that waits for the limits
	callers int
}

// fewRates is the number of entries up to which no entry is removed.
const fewRates = 64

// NewRate returns a Rate. limit and burst are those of each namespace, and all is the limit of all namespaces together.
func NewRate(limit rate.Limit, burst int, all *rate.Limiter) *Rate {
	return &Rate{limit: limit, burst: burst, all: all, byNamespace: map[string]*namespaceRate{}, sweepAt: fewRates}
}

// Wait waits until both limits allow count units of the namespace. count is at most the burst. It returns false if the
// context ended first.
func (r *Rate) Wait(ctx context.Context, namespace string, count int) bool {
	entry := r.enter(namespace)
	defer r.leave(entry)
	select {
	case entry.turn <- struct{}{}:
		defer func() { <-entry.turn }()
	case <-ctx.Done():
		return false
	}
	return entry.limiter.WaitN(ctx, count) == nil && r.all.WaitN(ctx, count) == nil
}

// enter adds a caller of the namespace, and returns the limit of the namespace.
func (r *Rate) enter(namespace string) *namespaceRate {
	r.mu.Lock()
	defer r.mu.Unlock()
	entry := r.byNamespace[namespace]
	if entry == nil {
		r.sweep()
		entry = &namespaceRate{limiter: rate.NewLimiter(r.limit, r.burst), turn: make(chan struct{}, 1)}
		r.byNamespace[namespace] = entry
	}
	entry.callers++
	return entry
}

// leave removes a caller of the namespace.
func (r *Rate) leave(entry *namespaceRate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	entry.callers--
}

// sweep removes idle entries whose burst is full, because a new entry would be equal. It runs whenever the map has
// doubled since the last sweep. The common limit bounds the number of other idle entries.
func (r *Rate) sweep() {
	if len(r.byNamespace) < r.sweepAt {
		return
	}
	maps.DeleteFunc(r.byNamespace, func(_ string, entry *namespaceRate) bool {
		return entry.callers == 0 && entry.limiter.Tokens() >= float64(r.burst)
	})
	r.sweepAt = max(fewRates, 2*len(r.byNamespace))
}
