// Keeps chats of @ai-sdk/react and EventSources, as a page does, for a Go test that
// says what to do: one JSON object a line on standard input, one answer a line on
// standard output. It judges nothing. Arguments: the folder with node_modules and
// the package (react3 or react4), whose own ai is used.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [dir, pkg] = process.argv.slice(2);
const top = createRequire(dir + '/package.json');
const own = createRequire(top.resolve(pkg));
const load = path => import(pathToFileURL(path).href);
const { Chat } = await load(top.resolve(pkg));
const ai = await load(own.resolve('ai'));
const { EventSource } = await load(top.resolve('eventsource'));
const pages = new Map();
const sources = new Map();

// A network layer that sends a request again when its connection broke before the answer.
const again = page => async (url, init) => {
  for (let tries = 1; ; tries++) {
    try {
      return await fetch(url, init);
    } catch (e) {
      if (tries === 3 || init?.signal?.aborted) throw e;
      page.retries++;
    }
  }
};

function open(s) {
  const page = { pending: 0, retries: 0, thrown: '' };
  const query = s.query ?? '';
  const transport = new ai.DefaultChatTransport({
    api: `${s.session}/stream${query}`,
    headers: { Authorization: `Bearer ${s.token}` },
    prepareReconnectToStreamRequest: () => ({ api: `${s.session}/stream${query}` }),
    ...(s.retry && { fetch: again(page) }),
    ...(s.body && { body: s.body }),
    ...(!s.stock && {
      prepareSendMessagesRequest: ({ id, messages, trigger, messageId, body }) => ({
        body: { id, messages: [messages.find(m => m.id === messageId) ?? messages.at(-1)], trigger, messageId, ...body },
      }),
    }),
  });
  page.chat = new Chat({
    id: s.id,
    messages: s.messages ?? [],
    transport,
    ...(s.automatic && { sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithApprovalResponses }),
  });
  pages.set(s.chat, page);
}

function begin(page, promise) {
  page.pending++;
  promise.catch(e => { page.thrown = String(e?.message ?? e); }).finally(() => { page.pending--; });
}

function state(page) {
  const { status, error, messages } = page.chat;
  return { status, error: error ? String(error.message ?? error) : page.thrown, pending: page.pending, retries: page.retries, messages };
}

async function read(s) {
  const out = { error: '', messages: [] };
  const transport = new ai.DefaultChatTransport({
    headers: { Authorization: `Bearer ${s.token}` },
    prepareReconnectToStreamRequest: () => ({ api: s.session }),
  });
  const byId = new Map();
  try {
    const stream = await transport.reconnectToStream({ chatId: 'read' });
    for await (const m of ai.readUIMessageStream({ stream, onError: e => { out.error ||= String(e?.message ?? e); } })) byId.set(m.id, m);
  } catch (e) {
    out.error ||= String(e?.message ?? e);
  }
  out.messages = [...byId.values()];
  return out;
}

function follow(s) {
  const seen = { opens: 0, errors: 0, events: [] };
  seen.source = new EventSource(s.session, {
    fetch: (url, init) => fetch(url, { ...init, headers: { ...init.headers, Authorization: `Bearer ${s.token}` } }),
  });
  seen.source.onopen = () => { seen.opens++; };
  seen.source.onerror = () => { seen.errors++; };
  const take = e => seen.events.push({ name: e.type, id: e.lastEventId, data: e.data });
  seen.source.onmessage = take;
  seen.source.addEventListener('reset', take);
  sources.set(s.chat, seen);
}

async function act(s) {
  const page = pages.get(s.chat);
  switch (s.do) {
    case 'version':
      return { version: own('ai/package.json').version, node: process.version };
    case 'open':
      return open(s);
    case 'send':
      return begin(page, page.chat.sendMessage({ text: s.text, ...(s.messageId && { messageId: s.messageId }) }));
    case 'resume':
      return begin(page, page.chat.resumeStream());
    case 'regenerate':
      return begin(page, page.chat.regenerate());
    case 'approve':
      return begin(page, page.chat.addToolApprovalResponse({ id: s.approval, approved: s.approved, reason: s.text }));
    case 'stop':
      return await page.chat.stop();
    case 'state':
      return state(page);
    case 'read':
      return await read(s);
    case 'follow':
      return follow(s);
    case 'seen': {
      const { source, ...seen } = sources.get(s.chat);
      return { ...seen, readyState: source.readyState };
    }
    case 'unfollow':
      return sources.get(s.chat).source.close();
  }
  throw new Error(`no such step: ${s.do}`);
}

for await (const line of createInterface({ input: process.stdin })) {
  let out;
  try {
    out = (await act(JSON.parse(line))) ?? {};
  } catch (e) {
    out = { failed: String(e?.stack ?? e) };
  }
  process.stdout.write(JSON.stringify(out) + '\n');
}
process.exit(0);
