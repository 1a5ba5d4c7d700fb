// Sends the requests of the forms on /docs, and shows what comes back. The token stays in this page.
"use strict";

const shownHeaders = /^(content-type|ratelimit|x-ratelimit|retry-after|x-process-time|www-authenticate)/;

function addressOf(form) {
  const query = new URLSearchParams();
  let path = form.dataset.path;
  for (const input of form.querySelectorAll("input[data-in]")) {
    if (input.dataset.in === "path") {
      path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    } else if (input.dataset.in === "query" && input.value !== "") {
      query.append(input.name, input.value);
    }
  }
  return query.size ? `${path}?${query}` : path;
}

function headersOf(form) {
  const headers = {};
  const token = document.getElementById("token").value.trim();
  if (token) headers.authorization = `Bearer ${token}`;
  if (form.elements.body) headers["content-type"] = "application/json";
  for (const input of form.querySelectorAll('input[data-in="header"]')) {
    if (input.value !== "") headers[input.name] = input.value;
  }
  return headers;
}

async function textOf(response) {
  const lines = [`HTTP ${response.status} ${response.statusText}`];
  for (const [name, value] of response.headers) {
    if (shownHeaders.test(name)) lines.push(`${name}: ${value}`);
  }
  let body = await response.text();
  if ((response.headers.get("content-type") || "").includes("json")) {
    try {
      body = JSON.stringify(JSON.parse(body), null, 2);
    } catch {
      // Then it is shown as it came.
    }
  }
  return `${lines.join("\n")}\n\n${body}`;
}

async function send(form) {
  const shown = document.createElement("pre");
  const request = { method: form.dataset.method, headers: headersOf(form), cache: "no-store" };
  if (form.elements.body) request.body = form.elements.body.value;
  try {
    shown.textContent = await textOf(await fetch(addressOf(form), request));
  } catch (error) {
    shown.textContent = `No answer: ${error.message}`;
  }
  form.querySelector("output").replaceChildren(shown);
}

document.addEventListener("submit", (event) => {
  event.preventDefault();
  send(event.target);
});

function openNamed() {
  const named = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named && named.matches("details")) named.open = true;
}

window.addEventListener("hashchange", openNamed);
openNamed();
