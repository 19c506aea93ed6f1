package uistream

import "strings"

// Hearth is what Hearth adds to a part where readers keep it, under
// providerMetadata.hearth.
type Hearth struct {
	At             Stamp  `json:"at,omitempty"`
	EndAt          Stamp  `json:"endAt,omitempty"`
	Lossy          bool   `json:"lossy,omitempty"`          // something was not valid text or JSON and was replaced
	TruncatedBytes int64  `json:"truncatedBytes,omitempty"` // size before it was cut; 0 = whole
	Interrupted    bool   `json:"interrupted,omitempty"`    // ended by the end of the turn, not by itself
	Agent          string `json:"agent,omitempty"`          // the agent's own id of the message
}

// Meta is providerMetadata. A reader keeps the newest one whole, so that the one
// at an end repeats what the one at the start said.
type Meta struct {
	Hearth *Hearth `json:"hearth,omitempty"`
}

// HearthMeta wraps h, nil when there is nothing to tell.
func HearthMeta(h Hearth) *Meta {
	if h == (Hearth{}) {
		return nil
	}
	return &Meta{Hearth: &h}
}

// Start opens the message of a turn; MessageID is the turn's id.
type Start struct {
	MessageID       string `json:"messageId"`
	MessageMetadata Value  `json:"messageMetadata,omitempty"` // an object
	At              Stamp  `json:"at,omitempty"`
}

// Part encodes it.
func (s Start) Part() Part { return encode(TypeStart, s) }

// StartStep opens a step.
type StartStep struct {
	At Stamp `json:"at,omitempty"`
}

// Part encodes it.
func (s StartStep) Part() Part { return encode(TypeStartStep, s) }

// FinishStep closes the step.
type FinishStep struct {
	EndAt Stamp `json:"endAt,omitempty"`
}

// Part encodes it.
func (s FinishStep) Part() Part { return encode(TypeFinishStep, s) }

// FinishReason is why a message ended; readers refuse any other word.
type FinishReason string

// The reasons that both reader lines know.
const (
	FinishStop          FinishReason = "stop"
	FinishLength        FinishReason = "length"
	FinishContentFilter FinishReason = "content-filter"
	FinishToolCalls     FinishReason = "tool-calls"
	FinishError         FinishReason = "error"
	FinishOther         FinishReason = "other"
)

// Finish closes the message. Server-made.
type Finish struct {
	FinishReason    FinishReason `json:"finishReason,omitempty"`
	MessageMetadata Value        `json:"messageMetadata,omitempty"` // an object
	EndAt           Stamp        `json:"endAt,omitempty"`
}

// Part encodes it.
func (f Finish) Part() Part { return encode(TypeFinish, f) }

// Abort tells a reader that the message was stopped. Transport only.
type Abort struct {
	Reason string `json:"reason,omitempty"`
}

// Part encodes it.
func (a Abort) Part() Part { return encode(TypeAbort, a) }

// Error is a sentence that a reader shows. Transport only, and the last part of its stream.
type Error struct {
	ErrorText string `json:"errorText"`
}

// Part encodes it.
func (e Error) Part() Part { return encode(TypeError, e) }

// MessageMetadata is merged into the message's metadata.
type MessageMetadata struct {
	MessageMetadata Value `json:"messageMetadata"` // an object
}

// Part encodes it.
func (m MessageMetadata) Part() Part { return encode(TypeMessageMetadata, m) }

// BlockKind is text or reasoning.
type BlockKind string

// The kinds of block.
const (
	Text      BlockKind = "text"
	Reasoning BlockKind = "reasoning"
)

// BlockStart opens a block of text or reasoning.
type BlockStart struct {
	Kind             BlockKind `json:"-"`
	ID               string    `json:"id"`
	ProviderMetadata *Meta     `json:"providerMetadata,omitempty"`
	At               Stamp     `json:"at,omitempty"`
}

// Part encodes it.
func (b BlockStart) Part() Part { return encode(Type(b.Kind)+"-start", b) }

// BlockDelta adds text to an open block.
type BlockDelta struct {
	Kind  BlockKind `json:"-"`
	ID    string    `json:"id"`
	Delta string    `json:"delta"`
	Lossy bool      `json:"lossy,omitempty"`
}

// Part encodes it.
func (b BlockDelta) Part() Part { return encode(Type(b.Kind)+"-delta", b) }

// BlockEnd closes a block.
type BlockEnd struct {
	Kind             BlockKind `json:"-"`
	ID               string    `json:"id"`
	ProviderMetadata *Meta     `json:"providerMetadata,omitempty"`
	EndAt            Stamp     `json:"endAt,omitempty"`
}

// Part encodes it.
func (b BlockEnd) Part() Part { return encode(Type(b.Kind)+"-end", b) }

// ToolInputStart announces a tool call. Every call of an agent is dynamic.
type ToolInputStart struct {
	ToolCallID       string `json:"toolCallId"`
	ToolName         string `json:"toolName"`
	Dynamic          bool   `json:"dynamic"`
	ProviderExecuted bool   `json:"providerExecuted,omitempty"`
	Title            string `json:"title,omitempty"`
	ToolMetadata     Value  `json:"toolMetadata,omitempty"` // an object
	ProviderMetadata *Meta  `json:"providerMetadata,omitempty"`
	At               Stamp  `json:"at,omitempty"`
}

// Part encodes it.
func (t ToolInputStart) Part() Part { return encode(TypeToolInputStart, t) }

// ToolInputDelta adds to the text of the input.
type ToolInputDelta struct {
	ToolCallID     string `json:"toolCallId"`
	InputTextDelta string `json:"inputTextDelta"`
}

// Part encodes it.
func (t ToolInputDelta) Part() Part { return encode(TypeToolInputDelta, t) }

// ToolInputAvailable has the whole input. Sent again it replaces title and
// input, and takes back an output that was shown.
type ToolInputAvailable struct {
	ToolCallID       string `json:"toolCallId"`
	ToolName         string `json:"toolName"`
	Input            Value  `json:"input"`
	Dynamic          bool   `json:"dynamic"`
	ProviderExecuted bool   `json:"providerExecuted,omitempty"`
	Title            string `json:"title,omitempty"`
	ToolMetadata     Value  `json:"toolMetadata,omitempty"` // an object
	ProviderMetadata *Meta  `json:"providerMetadata,omitempty"`
	At               Stamp  `json:"at,omitempty"`
}

// Part encodes it.
func (t ToolInputAvailable) Part() Part { return encode(TypeToolInputAvailable, t) }

// ToolInputError says that the input could not be read; it closes the call.
type ToolInputError struct {
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName"`
	Input      Value  `json:"input"`
	ErrorText  string `json:"errorText"`
	Dynamic    bool   `json:"dynamic"`
	Title      string `json:"title,omitempty"`
	EndAt      Stamp  `json:"endAt,omitempty"`
}

// Part encodes it.
func (t ToolInputError) Part() Part { return encode(TypeToolInputError, t) }

// ToolApprovalRequest asks a person; the options are in a data-permission part of the same id.
type ToolApprovalRequest struct {
	ApprovalID string `json:"approvalId"`
	ToolCallID string `json:"toolCallId"`
	At         Stamp  `json:"at,omitempty"`
}

// Part encodes it.
func (t ToolApprovalRequest) Part() Part { return encode(TypeToolApprovalRequest, t) }

// ToolOutputAvailable is the result of a call, or with Preliminary what there is of it so far.
type ToolOutputAvailable struct {
	ToolCallID       string `json:"toolCallId"`
	Output           Value  `json:"output"`
	Preliminary      bool   `json:"preliminary,omitempty"`
	Dynamic          bool   `json:"dynamic"`
	ProviderExecuted bool   `json:"providerExecuted,omitempty"`
	ToolMetadata     Value  `json:"toolMetadata,omitempty"` // an object
	ProviderMetadata *Meta  `json:"providerMetadata,omitempty"`
	EndAt            Stamp  `json:"endAt,omitempty"`
}

// Part encodes it.
func (t ToolOutputAvailable) Part() Part { return encode(TypeToolOutputAvailable, t) }

// ToolOutputError says that a call failed or was cut short.
type ToolOutputError struct {
	ToolCallID       string `json:"toolCallId"`
	ErrorText        string `json:"errorText"`
	Dynamic          bool   `json:"dynamic"`
	ProviderExecuted bool   `json:"providerExecuted,omitempty"`
	ToolMetadata     Value  `json:"toolMetadata,omitempty"` // an object
	ProviderMetadata *Meta  `json:"providerMetadata,omitempty"`
	EndAt            Stamp  `json:"endAt,omitempty"`
}

// Part encodes it.
func (t ToolOutputError) Part() Part { return encode(TypeToolOutputError, t) }

// ToolOutputDenied says that a person refused the call.
type ToolOutputDenied struct {
	ToolCallID string `json:"toolCallId"`
	EndAt      Stamp  `json:"endAt,omitempty"`
}

// Part encodes it.
func (t ToolOutputDenied) Part() Part { return encode(TypeToolOutputDenied, t) }

// SourceURL is a link that the agent gave.
type SourceURL struct {
	SourceID         string `json:"sourceId"`
	URL              string `json:"url"` // http, https or data:image/…
	Title            string `json:"title,omitempty"`
	ProviderMetadata *Meta  `json:"providerMetadata,omitempty"`
	At               Stamp  `json:"at,omitempty"`
}

// Part encodes it.
func (s SourceURL) Part() Part { return encode(TypeSourceURL, s) }

// SourceDocument names a document that the agent gave.
type SourceDocument struct {
	SourceID         string `json:"sourceId"`
	MediaType        string `json:"mediaType"`
	Title            string `json:"title"`
	Filename         string `json:"filename,omitempty"`
	ProviderMetadata *Meta  `json:"providerMetadata,omitempty"`
	At               Stamp  `json:"at,omitempty"`
}

// Part encodes it.
func (s SourceDocument) Part() Part { return encode(TypeSourceDocument, s) }

// File is a file or image in the message.
type File struct {
	URL              string `json:"url"` // http, https or data:image/…
	MediaType        string `json:"mediaType"`
	ProviderMetadata *Meta  `json:"providerMetadata,omitempty"`
	At               Stamp  `json:"at,omitempty"`
}

// Part encodes it.
func (f File) Part() Part { return encode(TypeFile, f) }

// Data is a data-NAME part. With an ID it replaces the former of that name and
// id; a transient one is shown and not kept by readers.
type Data struct {
	Name      string `json:"-"` // [A-Za-z0-9._-]; other characters become '-'
	ID        string `json:"id,omitempty"`
	Data      Value  `json:"data"`
	Transient bool   `json:"transient,omitempty"`
	At        Stamp  `json:"at,omitempty"`
	// What was done to Data, as in Hearth.
	Lossy          bool  `json:"lossy,omitempty"`
	TruncatedBytes int64 `json:"truncatedBytes,omitempty"`
}

// Part encodes it.
func (d Data) Part() Part {
	name := []byte(d.Name)
	for i, c := range name {
		if !nameByte(c) {
			name[i] = '-'
		}
	}
	if len(name) > maxDataNameSize {
		name = name[:maxDataNameSize]
	}
	if len(name) == 0 {
		name = []byte("-")
	}
	return encode(DataType(string(name)), d)
}

// Join makes one delta of two that follow each other in the same block. Only
// parts that have no cursor yet may be joined; ok is false when they do not fit.
func Join(a, b Part) (joined Part, ok bool) {
	if a.Type != b.Type || (a.Type != TypeTextDelta && a.Type != TypeReasoningDelta) || len(a.Raw)+len(b.Raw) > MaxPartBytes {
		return Part{}, false
	}
	var x, y BlockDelta
	if a.Decode(&x) != nil || b.Decode(&y) != nil || x.ID != y.ID {
		return Part{}, false
	}
	x.Kind, x.Delta, x.Lossy = BlockKind(a.Type[:len(a.Type)-len("-delta")]), x.Delta+y.Delta, x.Lossy || y.Lossy
	return x.Part(), true
}

// Blob is the data of a data-blob part: bytes that are kept apart, because no part
// can carry them. What a driver says of a blob is judged by whoever fetches it.
type Blob struct {
	ID        string `json:"id,omitempty"` // "sha256:" and 64 hexadecimal digits of the bytes; empty: they are lost
	Bytes     int64  `json:"bytes"`
	MediaType string `json:"mediaType,omitempty"`
	Of        BlobOf `json:"of"`
	Why       string `json:"why"`
	From      int64  `json:"from,omitempty"` // bytes of the text before the blob's first, which are in the transcript
	Lost      string `json:"lost,omitempty"` // why there is no blob, a sentence
}

// BlobOf says what a blob is of; exactly one is set.
type BlobOf struct {
	ToolCallID string `json:"toolCallId,omitempty"`
	Block      string `json:"block,omitempty"` // id of a text or reasoning block
	Turn       string `json:"turn,omitempty"`  // "updates": what the agent sent, "rest": parts beyond the turn's limit; lines of JSON
}

// Reasons for a blob.
const (
	BlobTooLarge     = "too_large"
	BlobNotText      = "not_text"
	BlobControlCodes = "control_codes"
	BlobTurnLimit    = "turn_limit"
)

// Limits of blobs.
const (
	MaxBlobBytes      = 256 << 20 // of one, and of all of a turn
	MaxTurnBlobs      = 1000
	BlobIDPrefix      = "sha256:"
	blobIDHexadecimal = 64
)

// BlobDigest is the hexadecimal digest in a blob's id; false when it is none.
func BlobDigest(id string) (string, bool) {
	hex, ok := strings.CutPrefix(id, BlobIDPrefix)
	if !ok || len(hex) != blobIDHexadecimal || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", false
	}
	return hex, true
}
