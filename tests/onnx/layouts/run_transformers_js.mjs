// Generate greedy tokens with transformers.js for each job of stdin; print one line of JSON each.
//
// The first argument is the folder whose node_modules have @huggingface/transformers. A job has the folder of an
// export, the rows of ids with their attention masks, and the number of tokens. For an encoder-decoder, it also has the
// decoder's first token. For an encoder of sound or images, it has the name, the shape and the values of its features.

import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const require = createRequire(path.join(path.resolve(process.argv[2]), 'package.json'));
const {
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    AutoModelForVision2Seq,
    Tensor,
    env,
} = await import(pathToFileURL(require.resolve('@huggingface/transformers')).href);
env.allowRemoteModels = false;
env.useFSCache = false;

function tensor(rows) {
    const values = BigInt64Array.from(rows.flat().map(BigInt));
    return new Tensor('int64', values, [rows.length, rows[0].length]);
}

// Each row of features alone: transformers.js generates with Whisper for one row.
function rows(job, { input_ids, attention_mask, ...given }) {
    const [count, ...shape] = job.shape;
    const size = job.values.length / count;
    return Array.from({ length: count }, (_, row) => {
        const values = Float32Array.from(job.values.slice(row * size, (row + 1) * size));
        return { ...given, inputs: new Tensor('float32', values, [1, ...shape]) };
    });
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
    let cls = encodes ? AutoModelForSeq2SeqLM : AutoModelForCausalLM;
    if (job.features !== undefined) {
        cls = job.features === 'pixel_values' ? AutoModelForVision2Seq : AutoModelForSpeechSeq2Seq;
    }
    const model = await cls.from_pretrained(name);
    // transformers.js takes a forced last token from config.json, and torch does not.
    if (encodes) Object.assign(given, { decoder_start_token_id: job.start, forced_eos_token_id: null });
    const made = [];
    for (const inputs of job.features === undefined ? [given] : rows(job, given)) {
        const tokens = await model.generate({ ...inputs, max_new_tokens: job.steps, do_sample: false });
        made.push(...tokens.tolist());
    }
    await model.dispose();
    return made.map((row) => row.slice(encodes ? 1 : job.ids[0].length).map(Number));
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
