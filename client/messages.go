package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Message is a UIMessage of the AI SDK. Role is user or assistant.
type Message struct {
	ID       string            `json:"id"`
	Role     string            `json:"role"`
	Metadata json.RawMessage   `json:"metadata,omitempty"`
	Parts    []json.RawMessage `json:"parts"`
}

// MessageList is a page of messages. Next is 0 on the last page.
type MessageList struct {
	Items []Message `json:"items"`
	Next  int64     `json:"next,omitempty"`
}

// maxMessages bounds a page of messages: the largest turn, and room around it.
const maxMessages = 160 << 20

// Messages reads a page of the conversation, of turns with numbers above after.
func (c *Client) Messages(ctx context.Context, id string, after int64) (out MessageList, err error) {
	q := url.Values{}
	if after > 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	f, err := c.fetch(ctx, one(id)+"/messages", q, "application/json", "")
	if err != nil {
		return out, err
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxMessages)).Decode(&out); err != nil {
		if CodeOf(err) != "" || ctx.Err() != nil {
			return out, err
		}
		return out, c.strange(&http.Response{StatusCode: http.StatusOK}, fmt.Errorf("read the messages: %w", err))
	}
	return out, nil
}

// Export fetches the whole conversation as a file. Format is jsonl (when empty) or markdown.
func (c *Client) Export(ctx context.Context, id, format string) (*File, error) {
	q := url.Values{}
	set(q, "format", format)
	media := "application/jsonl"
	if format == "markdown" {
		media = "text/markdown"
	}
	return c.fetch(ctx, one(id)+"/export", q, media, "session")
}
