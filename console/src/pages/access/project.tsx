// The project that a tab is about, in the address.
import { param } from "../../lib/address";
import { session } from "../../lib/session";

const chosen = param("project");

/** Id of the chosen project: that of the address, else one's own. */
export function projectId(): string {
  return chosen.value || session.value?.project?.id || "";
}

export function projectName(id: string): string {
  return session.value?.projects?.find((project) => project.id === id)?.name ?? id;
}

export function ProjectChoice() {
  const projects = session.value?.projects ?? [];
  const known = projects.some((project) => project.id === projectId());
  return (
    <select aria-label="Project" value={projectId()} onChange={(event) => (chosen.value = event.currentTarget.value)}>
      {!known && <option value={projectId()}>{projectId()}</option>}
      {projects.map((project) => <option key={project.id} value={project.id}>{project.name}</option>)}
    </select>
  );
}
