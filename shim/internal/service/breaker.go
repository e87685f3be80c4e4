package service

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	probeInterval = 250 * time.Millisecond
	probeDeadline = time.Second
)

// breaker keeps a hung service with a live socket from stalling the one scheduling thread, and with
// it pods that are none of ours: after some deadlines missed in a row calls fail at once, until a
// health check, made off that thread, is answered.
type breaker struct {
	ctx   context.Context
	limit int
	probe func(context.Context) error

	mu     sync.Mutex
	misses int
	open   bool
}

func newBreaker(ctx context.Context, limit int, probe func(context.Context) error) *breaker {
	return &breaker{ctx: ctx, limit: limit, probe: probe}
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

func (b *breaker) saw(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if status.Code(err) != codes.DeadlineExceeded {
		b.misses = 0
		return
	}
	b.misses++
	if b.misses >= b.limit && !b.open {
		b.open = true
		go b.untilHealthy()
	}
}

// untilHealthy closes the breaker at the first answer. Any will do, "unimplemented" too: what
// matters is that the service speaks.
func (b *breaker) untilHealthy() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(b.ctx, probeDeadline)
		err := b.probe(ctx)
		cancel()
		switch status.Code(err) {
		case codes.DeadlineExceeded, codes.Unavailable, codes.Canceled:
		default:
			b.mu.Lock()
			b.open, b.misses = false, 0
			b.mu.Unlock()
			return
		}
		select {
		case <-b.ctx.Done():
			return
		case <-tick.C:
		}
	}
}
