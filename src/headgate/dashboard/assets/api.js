// Requests to the service. The token lives in a variable, and in this tab's storage only if the user asks for it.

import { sentence } from "./format.js";

const STORED = "headgate-token";
let token = sessionStorage.getItem(STORED) ?? "";

export const hasToken = () => token !== "";

export function setToken(value, keep) {
  token = value;
  if (value && keep) sessionStorage.setItem(STORED, value);
  else sessionStorage.removeItem(STORED);
}

/** The service refused what was asked. */
export class Refusal extends Error {
  constructor(status, problem, retryAfter) {
    super(problem?.errors?.[0]?.detail ?? problem?.detail ?? problem?.title ?? `the service answered ${status}`);
    Object.assign(this, { status, code: problem?.code, retryAfter });
  }
}

/** The response. A refusal is thrown, and so is a TypeError when the service does not answer. */
export async function send(method, path, body, options) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store", credentials: "omit", ...options });
  if (response.ok) return response;
  throw new Refusal(response.status, await response.json().catch(() => null), Number(response.headers.get("Retry-After")) || 60);
}

export const ask = async (method, path, body) => (await send(method, path, body)).json();

/** What went wrong, in words. */
export function wordsFor(error) {
  if (!(error instanceof Refusal)) return "The service does not answer.";
  return sentence(error.status === 403 && error.code === "forbidden" ? "this needs an operator token" : error.message);
}
