package client

import (
	"context"
	"net/http"
	"net/url"
)

// Edit changes a prompt that waits. Position counts from 1; beyond the end it is the last.
// What is empty stays.
type Edit struct {
	Prompt   string `json:"prompt,omitempty"`
	Position int    `json:"position,omitempty"`
}

func queued(id, turn string) string { return one(id) + "/queue/" + url.PathEscape(turn) }

// EditQueued changes the text or the place of a prompt that waits. One that has left the
// queue is refused with TURN_NOT_QUEUED; Details has its state.
func (c *Client) EditQueued(ctx context.Context, id, turn string, e Edit) (out Accepted, err error) {
	return out, c.do(ctx, http.MethodPatch, queued(id, turn), nil, e, "", &out)
}

// RemoveQueued takes a prompt out of the queue; its turn stays as canceled and never
// started. Twice is fine. One that has gone out is refused with TURN_NOT_QUEUED.
func (c *Client) RemoveQueued(ctx context.Context, id, turn string) (out Turn, err error) {
	return out, c.do(ctx, http.MethodDelete, queued(id, turn), nil, nil, "", &out)
}

// HoldQueue holds the queue: the turn at work goes on, the next one waits for
// [Client.ReleaseQueue] or a new prompt.
func (c *Client) HoldQueue(ctx context.Context, id string) (out Session, err error) {
	return out, c.do(ctx, http.MethodPost, one(id)+"/queue/hold", nil, nil, "", &out)
}
