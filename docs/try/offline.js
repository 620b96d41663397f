// Keep the files of this build, so that the page works without a network. build.py writes the name of the build.
const BUILD = "development";
const KEPT = `tieconv-${BUILD}`;

self.addEventListener("install", (event) => event.waitUntil(keepPage()));
self.addEventListener("activate", (event) => event.waitUntil(tidy()));
self.addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  if (method === "GET" && url.startsWith(self.registration.scope)) event.respondWith(answer(event.request));
});

// What the page loads before this worker controls it. The other files are kept when the page fetches them.
async function keepPage() {
  const cache = await caches.open(KEPT);
  await cache.addAll(["./", "style.css", "page.js"].map((name) => new Request(name, { cache: "reload" })));
}

async function tidy() {
  const old = (await caches.keys()).filter((name) => name.startsWith("tieconv-") && name !== KEPT);
  await Promise.all(old.map((name) => caches.delete(name)));
  await self.clients.claim();
}

async function answer(request) {
  const cache = await caches.open(KEPT);
  const stored = await cache.match(request, { ignoreSearch: true });
  if (stored) return stored;
  const response = await fetch(request, request.mode === "navigate" ? {} : { cache: "no-cache" });
  if (response.ok) await cache.put(request, response.clone());
  return response;
}
