// Package service is the shim's line to the brain: the connection and its deadlines. No call is made on the
// scheduling thread.
package service

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
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

// Client speaks to the service.
type Client struct {
	conn    *grpc.ClientConn
	gangs   musterv1.GangServiceClient
	timeout time.Duration
}

// Dial prepares the connection; it is made when first used. The timeout bounds each unary call. The transport is not encrypted, so only
// a Unix socket is taken, which the file system's permissions guard.
func Dial(address string, timeout time.Duration) (*Client, error) {
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
	return &Client{conn: conn, gangs: musterv1.NewGangServiceClient(conn), timeout: timeout}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Watch opens a session. It waits for the socket as long as it takes.
func (c *Client) Watch(ctx context.Context, request *musterv1.WatchRequest) (musterv1.GangService_WatchClient, error) {
	return c.gangs.Watch(ctx, request, grpc.WaitForReady(true))
}

// Filter says where a gang's members may go.
func (c *Client) Filter(ctx context.Context, plan *musterv1.PlanRef) (*musterv1.FilterResponse, error) {
	return call(ctx, c, "Filter", &musterv1.FilterRequest{Plan: plan}, c.gangs.Filter)
}

// Score ranks what Filter said.
func (c *Client) Score(ctx context.Context, plan *musterv1.PlanRef) (*musterv1.ScoreResponse, error) {
	return call(ctx, c, "Score", &musterv1.ScoreRequest{Plan: plan}, c.gangs.Score)
}

// Reserve claims a member's node.
func (c *Client) Reserve(ctx context.Context, request *musterv1.ReserveRequest) (*musterv1.ReserveResponse, error) {
	return call(ctx, c, "Reserve", request, c.gangs.Reserve)
}

// Permit asks whether the gang may bind.
func (c *Client) Permit(ctx context.Context, request *musterv1.PermitRequest) (*musterv1.PermitResponse, error) {
	return call(ctx, c, "Permit", request, c.gangs.Permit)
}

// Unreserve reports what became of a member.
func (c *Client) Unreserve(ctx context.Context, request *musterv1.UnreserveRequest) error {
	_, err := call(ctx, c, "Unreserve", request, c.gangs.Unreserve)
	return err
}

// ReportInTree answers a question about in-tree plugins.
func (c *Client) ReportInTree(ctx context.Context, request *musterv1.ReportInTreeRequest) error {
	_, err := call(ctx, c, "ReportInTree", request, c.gangs.ReportInTree)
	return err
}

// IsStale: the service has moved on to another epoch or generation.
func IsStale(err error) bool { return status.Code(err) == codes.FailedPrecondition }

type unary[Request, Response any] func(context.Context, Request, ...grpc.CallOption) (Response, error)

func call[Request, Response any](ctx context.Context, c *Client, method string, request Request, do unary[Request, Response]) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	start := time.Now()
	response, err := do(ctx, request)
	metrics.Unary(method, status.Code(err).String(), time.Since(start))
	return response, err
}
