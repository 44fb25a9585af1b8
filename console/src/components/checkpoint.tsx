// The checkpoint that a replica runs, as requests and evaluations name it, and its version where that has a number.
import { Unknown } from "./basics";

export function Checkpoint({ version, fingerprint }: { version: number; fingerprint: string }) {
  const name = fingerprint ? <code title={version ? `of version ${version}` : "of the configuration's version"}>{fingerprint}</code> : <Unknown why="its checkpoint has not been read yet" />;
  return <>{name}{version > 0 && <span class="quiet"> @{version}</span>}</>;
}
