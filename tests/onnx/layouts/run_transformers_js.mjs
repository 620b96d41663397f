// Generate greedy tokens with transformers.js for each job of stdin; print one line of JSON each.
//
// The first argument is the folder whose node_modules have @huggingface/transformers. A job has the folder of an
// export, the rows of ids with their attention masks, and the number of tokens. For an encoder-decoder, it also has the
// decoder's first token.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const require = createRequire(path.join(path.resolve(process.argv[2]), 'package.json'));
const { AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, Tensor, env } = await import(
    pathToFileURL(require.resolve('@huggingface/transformers')).href
);
env.allowRemoteModels = false;
env.useFSCache = false;

function tensor(rows) {
    const values = BigInt64Array.from(rows.flat().map(BigInt));
    return new Tensor('int64', values, [rows.length, rows[0].length]);
}

async function answer(job) {
    env.localModelPath = path.dirname(job.folder);
    const name = path.basename(job.folder);
    const given = { input_ids: tensor(job.ids), attention_mask: tensor(job.mask) };
    if (job.masked) {
        const model = await AutoModelForMaskedLM.from_pretrained(name);
        given.token_type_ids = tensor(job.ids.map((row) => row.map(() => 0)));
        const { logits } = await model(given);
        const rows = logits.tolist();
        await model.dispose();
        return rows.map((row) => row.map((values) => values.indexOf(Math.max(...values))));
    }
    const encodes = job.start !== undefined;
    const model = await (encodes ? AutoModelForSeq2SeqLM : AutoModelForCausalLM).from_pretrained(name);
    // transformers.js takes a forced last token from config.json, and torch does not.
    if (encodes) Object.assign(given, { decoder_start_token_id: job.start, forced_eos_token_id: null });
    const made = await model.generate({ ...given, max_new_tokens: job.steps, do_sample: false });
    await model.dispose();
    return made.tolist().map((row) => row.slice(encodes ? 1 : job.ids[0].length).map(Number));
}

for await (const line of createInterface({ input: process.stdin })) {
    let found;
    try {
        found = { tokens: await answer(JSON.parse(line)) };
    } catch (error) {
        found = { error: String(error).slice(0, 400) };
    }
    console.log(JSON.stringify(found));
}
