// Package service is the shim's line to the brain: the connection, deadlines, the circuit breaker.
package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"muster.dev/shim/internal/metrics"
	"muster.dev/shim/internal/musterv1"
)

// maxMessage bounds one message either way: the candidates of a gang of thousands are some megabytes.
const maxMessage = 16 << 20

// Reconnect is how a lost socket is tried again: 0.1 s … 5 s with jitter, for ever.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
	MinConnectTimeout: time.Second,
}

// Deadlines of the unary calls.
type Deadlines struct {
	// Fetch is for calls off the scheduling thread: Filter, Score, Unreserve.
	Fetch time.Duration
	// Hook is for Reserve and Permit, which hold the scheduling thread.
	Hook time.Duration
	// Misses in a row of the Hook deadline after which those calls fail at once.
	Misses int
}

// Client speaks to the service.
type Client struct {
	conn      *grpc.ClientConn
	gangs     musterv1.GangServiceClient
	deadlines Deadlines
	breaker   *breaker
}

// Dial prepares the connection; it is made when first used. The transport is not encrypted, so only
// a Unix socket is taken, which the file system's permissions guard.
func Dial(ctx context.Context, address string, deadlines Deadlines) (*Client, error) {
	if !strings.HasPrefix(address, "unix:") {
		return nil, fmt.Errorf("serviceAddress %q: only a Unix socket is supported (unix:///run/muster/muster.sock), since the connection is neither encrypted nor authenticated", address)
	}
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(reconnect),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, fmt.Errorf("serviceAddress %q: %w", address, err)
	}
	health := healthv1.NewHealthClient(conn)
	probe := func(ctx context.Context) error {
		_, err := health.Check(ctx, &healthv1.HealthCheckRequest{})
		return err
	}
	return &Client{
		conn:      conn,
		gangs:     musterv1.NewGangServiceClient(conn),
		deadlines: deadlines,
		breaker:   newBreaker(ctx, deadlines.Misses, probe),
	}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Watch opens a session. It waits for the socket as long as it takes.
func (c *Client) Watch(ctx context.Context, request *musterv1.WatchRequest) (musterv1.GangService_WatchClient, error) {
	return c.gangs.Watch(ctx, request, grpc.WaitForReady(true))
}

// Filter, off the scheduling thread.
func (c *Client) Filter(ctx context.Context, plan *musterv1.PlanRef) (*musterv1.FilterResponse, error) {
	return call(ctx, "Filter", c.deadlines.Fetch, &musterv1.FilterRequest{Plan: plan}, c.gangs.Filter)
}

// Score, off the scheduling thread.
func (c *Client) Score(ctx context.Context, plan *musterv1.PlanRef) (*musterv1.ScoreResponse, error) {
	return call(ctx, "Score", c.deadlines.Fetch, &musterv1.ScoreRequest{Plan: plan}, c.gangs.Score)
}

// Unreserve, off the scheduling thread.
func (c *Client) Unreserve(ctx context.Context, request *musterv1.UnreserveRequest) error {
	_, err := call(ctx, "Unreserve", c.deadlines.Fetch, request, c.gangs.Unreserve)
	return err
}

// Reserve holds the scheduling thread: short deadline, circuit breaker.
func (c *Client) Reserve(ctx context.Context, request *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error) {
	return guarded(ctx, c, "Reserve", request, c.gangs.Reserve)
}

// Permit holds the scheduling thread: short deadline, circuit breaker.
func (c *Client) Permit(ctx context.Context, request *musterv1.PermitRequest) (*musterv1.PermitResponse, error) {
	return guarded(ctx, c, "Permit", request, c.gangs.Permit)
}

// IsStale: the service has moved on to another epoch or generation.
func IsStale(err error) bool { return status.Code(err) == codes.FailedPrecondition }

// ErrOpen is the answer while the breaker is open.
var ErrOpen = errors.New("the service misses its deadlines: not asked until it answers a health check")

type unary[Request, Response any] func(context.Context, Request, ...grpc.CallOption) (Response, error)

func call[Request, Response any](ctx context.Context, method string, deadline time.Duration, request Request, do unary[Request, Response]) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	start := time.Now()
	response, err := do(ctx, request)
	metrics.Unary(method, status.Code(err).String(), time.Since(start))
	return response, err
}

func guarded[Request, Response any](ctx context.Context, c *Client, method string, request Request, do unary[Request, Response]) (Response, error) {
	if c.breaker.isOpen() {
		var none Response
		return none, ErrOpen
	}
	response, err := call(ctx, method, c.deadlines.Hook, request, do)
	c.breaker.saw(err)
	return response, err
}
