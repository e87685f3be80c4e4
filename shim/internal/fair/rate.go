// Package fair has limits that namespaces share: none of them can use one up for the others.
package fair

import (
	"context"
	"maps"
	"sync"

	"golang.org/x/time/rate"
)

// Rate limits a rate for each namespace and for all together. In each namespace one caller at a time waits for the
// limits, and the limit of all serves callers in the order in which they came. So namespaces take turns, and one that
// has thousands of callers delays another by one of them.
type Rate struct {
	each  rate.Limit // of one namespace
	burst int
	all   *rate.Limiter

	mu      sync.Mutex
	of      map[string]*ownRate
	sweepAt int // size of the map at which entries are removed
}

// ownRate is the limit of one namespace. Its entry is removed some time after it is idle and its burst is whole again.
type ownRate struct {
	limiter *rate.Limiter
	turn    chan struct{} // held by the caller that waits for the limits
	callers int
}

// fewRates is the number of entries up to which none is removed.
const fewRates = 64

// NewRate returns a Rate. In each namespace it lets this many go on each second, after a burst; all is the limit of all.
func NewRate(each rate.Limit, burst int, all *rate.Limiter) *Rate {
	return &Rate{each: each, burst: burst, all: all, of: map[string]*ownRate{}, sweepAt: fewRates}
}

// Wait waits until this many of the namespace may go on, at most the burst. It returns false if the context ended
// first.
func (r *Rate) Wait(ctx context.Context, namespace string, count int) bool {
	own := r.enter(namespace)
	defer r.leave(own)
	select {
	case own.turn <- struct{}{}:
		defer func() { <-own.turn }()
	case <-ctx.Done():
		return false
	}
	return own.limiter.WaitN(ctx, count) == nil && r.all.WaitN(ctx, count) == nil
}

func (r *Rate) enter(namespace string) *ownRate {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.of[namespace]
	if own == nil {
		r.sweep()
		own = &ownRate{limiter: rate.NewLimiter(r.each, r.burst), turn: make(chan struct{}, 1)}
		r.of[namespace] = own
	}
	own.callers++
	return own
}

func (r *Rate) leave(own *ownRate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	own.callers--
}

// sweep removes entries that equal a new one, whenever the map has grown to twice what was left last time. The limit
// of all bounds the entries that are idle and not whole yet.
func (r *Rate) sweep() {
	if len(r.of) < r.sweepAt {
		return
	}
	maps.DeleteFunc(r.of, func(_ string, own *ownRate) bool {
		return own.callers == 0 && own.limiter.Tokens() >= float64(r.burst)
	})
	r.sweepAt = max(fewRates, 2*len(r.of))
}
