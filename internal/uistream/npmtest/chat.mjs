// Opens a session as a page does that was loaded while a turn is at work: messages
// first, then the stream, with the AI SDK's chat. Prints a line when the
// stream is open and one with what the chat has at the end. Arguments: the folder with
// node_modules, the package (ai6 or ai7), the address of the sessions, a token, the session.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [dir, pkg, api, token, id] = process.argv.slice(2);
const require = createRequire(dir + '/package.json');
const ai = await import(pathToFileURL(require.resolve(pkg)).href);
const opening = async (...args) => {
  const res = await fetch(...args);
  console.log('open');
  return res;
};
const headers = { Authorization: 'Bearer ' + token };
const out = { error: '', seeded: [], messages: [], status: '' };
try {
  out.seeded = (await (await fetch(`${api}/${id}/messages`, { headers })).json()).items;
  await ai.validateUIMessages({ messages: structuredClone(out.seeded) });
  await ai.convertToModelMessages(structuredClone(out.seeded));
  const state = {
    status: 'ready', error: undefined, messages: structuredClone(out.seeded),
    pushMessage(m) { this.messages = [...this.messages, m]; },
    popMessage() { this.messages = this.messages.slice(0, -1); },
    replaceMessage(i, m) { this.messages = this.messages.with(i, structuredClone(m)); },
    snapshot: x => structuredClone(x),
  };
  class Chat extends ai.AbstractChat {
    constructor() {
      super({ id, state, transport: new ai.DefaultChatTransport({ api, headers, fetch: opening }), onError: e => { out.error ||= String(e?.message ?? e); } });
    }
  }
  const chat = new Chat();
  await chat.resumeStream();
  out.messages = state.messages;
  out.status = state.status;
} catch (e) {
  out.error ||= 'thrown: ' + String(e?.message ?? e);
}
console.log(JSON.stringify(out));
