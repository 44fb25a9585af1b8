// Sign-in, in the place of the view that was asked for: after it the address is still the same.
import { useSignal } from "@preact/signals";
import { ErrorBox } from "../components/basics";
import { TextField } from "../components/form";
import type { ApiError } from "../lib/api";
import { asApiError } from "../lib/resource";
import { oidcAddress, session, signIn } from "../lib/session";

export function SignIn() {
  const key = useSignal("");
  const busy = useSignal(false);
  const error = useSignal<ApiError | null>(null);
  const oidc = session.value ? oidcAddress(session.value) : null;
  const provider = session.value?.features.oidc?.name;

  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    busy.value = true;
    error.value = null;
    try {
      await signIn(key.value.trim());
    } catch (failure) {
      error.value = asApiError(failure);
    }
    busy.value = false;
  };
  return (
    <main class="sign-in">
      <h1>Sign in to Kvarn</h1>
      {oidc && <a class="button primary" href={oidc}>Sign in with {provider}</a>}
      <form onSubmit={submit}>
        <TextField
          label="API key"
          type="password"
          value={key.value}
          onChange={(value) => (key.value = value)}
          required
          autoFocus
          hint="The key is sent once and not kept in this browser. It decides what you see."
        />
        {error.value && <ErrorBox error={error.value} what="You are not signed in." />}
        <div>
          <button type="submit" class={`button ${oidc ? "" : "primary"}`} disabled={busy.value || !key.value.trim()}>
            {busy.value ? "Signing in …" : "Sign in"}
          </button>
        </div>
      </form>
    </main>
  );
}
