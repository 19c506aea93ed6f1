// Reads UI-message streams with the AI SDK as a page does, and prints what it
// made of each as one line of JSON. Arguments: the folder with node_modules, the
// package (ai6 or ai7), then name=URL pairs.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [dir, pkg, ...streams] = process.argv.slice(2);
const require = createRequire(dir + '/package.json');
const ai = await import(pathToFileURL(require.resolve(pkg)).href);

for (const arg of streams) {
  const at = arg.indexOf('=');
  const out = { name: arg.slice(0, at), error: '', chunks: {}, messages: [], states: Object.create(null) };
  try {
    const transport = new ai.DefaultChatTransport({ api: arg.slice(at + 1) });
    const stream = await transport.sendMessages({ chatId: 'c', messages: [], trigger: 'submit-message' });
    const [read, count] = stream.tee();
    const counting = (async () => {
      try {
        for (const r = count.getReader(); ; ) {
          const { done, value } = await r.read();
          if (done) return;
          out.chunks[value.type] = (out.chunks[value.type] ?? 0) + 1;
        }
      } catch { /* the other branch reports it */ }
    })();
    const byId = new Map();
    for await (const m of ai.readUIMessageStream({ stream: read, onError: e => { out.error ||= String(e?.message ?? e); } })) {
      byId.set(m.id, m);
      for (const p of m.parts) {
        if (!p.toolCallId) continue;
        const s = p.state + (p.preliminary ? ' preliminary' : '');
        const seen = (out.states[p.toolCallId] ??= []);
        if (seen.at(-1) !== s) seen.push(s);
      }
    }
    await counting;
    out.messages = [...byId.values()];
  } catch (e) {
    out.error ||= 'thrown: ' + String(e?.message ?? e);
  }
  console.log(JSON.stringify(out));
}
